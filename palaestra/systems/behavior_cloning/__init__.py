"""Behavior cloning, the warm start."""
