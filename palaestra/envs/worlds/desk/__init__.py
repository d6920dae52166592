"""Desk: an agent serves customers with a database, tools and written rules. `world.py` has the environment."""
