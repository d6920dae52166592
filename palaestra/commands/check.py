"""`palaestra envs --check`: the validity check of one environment, and of its committed panels."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.envs.kit.panels import panels
from palaestra.evaluation.scripted import verify_played
from palaestra.recipe import load
from palaestra.testing import check_environment


def run(*, environment: str, overrides: Sequence[str]) -> None:
    """Print one line if every rule holds, one on what its splits share, and one for each panel that is as committed.

    Args:
        environment: its name, or `path/to/file.py:class`.
        overrides: its options, as in `level=GoToObj`; with any, panels are left out.

    Raises: ContractError, with the rule that is broken; InvalidData, for a changed panel; UnknownName, RecipeError.
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
