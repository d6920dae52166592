"""Teams: programs for several agents, and what they share. Floor 6."""
