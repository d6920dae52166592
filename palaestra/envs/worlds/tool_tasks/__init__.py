"""Questions that an agent answers with tools of any kind. The environment is in `world`."""
