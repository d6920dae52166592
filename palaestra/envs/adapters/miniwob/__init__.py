"""MiniWoB++: small web pages in a real browser. The environment is in `world`."""
