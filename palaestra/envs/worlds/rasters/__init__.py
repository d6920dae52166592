"""Rasters: jigsaws, and questions about small pictures of whole numbers. `world` has the environment."""
