"""What the kinds of parts promise each other, by subject."""
