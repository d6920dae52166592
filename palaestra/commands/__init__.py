"""What each command of `palaestra` does; one module a command, each with `run(**arguments)`."""
