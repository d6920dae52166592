"""TextArena: text games of one player, of two and of many."""
