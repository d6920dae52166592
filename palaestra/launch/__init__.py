"""Running many runs."""
