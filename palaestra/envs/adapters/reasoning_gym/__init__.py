"""Reasoning Gym: generated questions of more than a hundred kinds, judged by rules. The environment is in `world`."""
