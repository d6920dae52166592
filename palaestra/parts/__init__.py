"""Classic parts, and parts that several systems use. Each file holds the parts of one kind."""
