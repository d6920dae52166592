"""A household in text: find things, clean, heat or cool them, bring them somewhere. The environment is in `world`."""
