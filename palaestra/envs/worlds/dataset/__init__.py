"""The environment `dataset`: problems from a user's file, and rewards from functions."""
