"""Questions that are answered with tools of any kind, one answer right or wrong. The environment is in `world`."""
