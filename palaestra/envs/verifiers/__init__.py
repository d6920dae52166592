"""Verifiers, which say what a reply is worth, and the adapter that calls them and a user's own functions."""
