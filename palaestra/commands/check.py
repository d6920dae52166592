"""`palaestra envs NAME --check`: checks an environment against the environment protocol, and its committed panels."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.envs.kit.panels import panels
from palaestra.evaluation.scripted import verify_played
from palaestra.recipe import load
from palaestra.testing import check_environment


def run(*, environment: str, overrides: Sequence[str]) -> None:
    """Check an environment, and print a line for the protocol, one for its splits and one for each panel.

    Args:
        environment: its name, or `path/to/file.py:class`.
        overrides: its options, such as `level=GoToObj`. With options, panels are not checked.

    Raises: ContractError, with the broken rule; InvalidData, for a panel that has changed; UnknownName, RecipeError.
    """
    recipe = load(
        [{"environment": {environment: {}}, "policies": {"main": {"policy": "random", "trainable": False}}}],
        [f"environment.{environment}.{override}" for override in overrides],
    )
    environment_part = recipe.settings.environment
    splits = check_environment(environment_part(), make=environment_part)
    print(f"{environment}: every rule of the environment protocol holds")
    print(f"{environment}: {splits}")
    for name, entry in panels().items():
        if entry.environment == environment and not overrides:
            verify_played(name)
            print(f"panel {name}: {entry.n} tasks{' and 50 episodes' if entry.played else ''} as committed")
