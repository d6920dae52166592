"""Worlds that are built in. Each is a part, found by its name."""
