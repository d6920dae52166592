"""MiniWoB++: small web pages in a real browser. Knows nothing; `world` has the environment."""
