"""Parts that play environments of other libraries. `exports` makes our environments playable by other libraries."""
