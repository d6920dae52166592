"""Environments of other libraries. Each is a part, found by its name."""
