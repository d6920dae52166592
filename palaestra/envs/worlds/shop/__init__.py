"""A web shop in text, in which an agent buys what an instruction asks for. The environment is in `world`."""
