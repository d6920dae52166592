"""Household in text: find things, clean, heat or cool them, bring them to a place. `world` has the environment."""
