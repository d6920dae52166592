"""Craft: a grid with resources, a tech tree, and goals of several depths. `world.py` has the environment."""
