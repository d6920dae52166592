"""A web shop in text: search, look, choose options, buy what an instruction asks for. The environment is in `world`."""
