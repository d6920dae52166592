"""Teams: programs for several agents, and what they share."""
