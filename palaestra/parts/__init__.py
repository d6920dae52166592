"""Parts that are classics, or that two or more systems use. Each file holds the parts of one kind."""
