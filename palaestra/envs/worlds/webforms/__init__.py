"""Web forms in pure Python. Knows nothing; `world` has the environment."""
