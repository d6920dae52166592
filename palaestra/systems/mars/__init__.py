"""MARS (MARSHAL). Self-play in games whose seats are worth different amounts, with one policy for all seats."""
