"""AdvEvo-MARL. Groups of agents with one purpose (attackers, defenders) and few episodes: they share a baseline."""
