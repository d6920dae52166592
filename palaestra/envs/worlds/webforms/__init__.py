"""Web forms in pure Python. The environment is in `world`."""
