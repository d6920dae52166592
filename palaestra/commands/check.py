"""`palaestra envs --check`: the validity check of one environment."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.recipe import load
from palaestra.testing import check_environment
from palaestra.training.build import bind


def run(*, environment: str, overrides: Sequence[str]) -> None:
    """Print one line if every rule holds.

    Args:
        environment: its name, or `path/to/file.py:class`. overrides: its options, as in `level=GoToObj`.

    Raises: ContractError, with the rule that is broken; UnknownName, RecipeError.
    """
    recipe = load(
        [{"environment": {environment: {}}, "policies": {"main": {"policy": "random", "trainable": False}}}],
        [f"environment.{environment}.{override}" for override in overrides],
    )
    bound = bind("environment", recipe.settings.environment)
    check_environment(bound(), make=bound)
    print(f"{environment}: every rule of the environment protocol holds")
