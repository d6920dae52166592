"""The commands of `palaestra`. Each command has a module, whose function `run` does the work."""
