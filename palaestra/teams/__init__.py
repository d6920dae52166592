"""Programs for teams of several agents, and the code that these programs share."""
