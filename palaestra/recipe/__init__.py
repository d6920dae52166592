"""Recipes: YAML layers and overrides become the checked settings of a run, each value with its origin.

Importing this package loads no part and no torch. `load` imports only the modules of the parts that a recipe uses.
"""

from palaestra.recipe.loading import load
from palaestra.recipe.parts import Entry, RecipePart
from palaestra.recipe.resolved import Recipe
from palaestra.recipe.sources import is_recipe, packaged, split_arguments

__all__ = ["Entry", "Recipe", "RecipePart", "is_recipe", "load", "packaged", "split_arguments"]
