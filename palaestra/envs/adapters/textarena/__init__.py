"""TextArena: text games of one player, of two and of many. The environment is in `world`."""
