"""`palaestra envs`: list environments, check one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from palaestra.errors import PalaestraError
from palaestra.recipe import load
from palaestra.registry import names, part
from palaestra.testing import check_environment
from palaestra.training.build import bind


def run(*, check: str | None, overrides: Sequence[str]) -> None:
    """Print a line an environment, or the result of a check."""
    if check is None:
        _list()
        return
    recipe = load(
        [{"environment": {check: {}}, "policies": {"main": {"policy": "random", "trainable": False}}}],
        [f"environment.{check}.{override}" for override in overrides],
    )
    bound = bind("environment", recipe.settings.environment)
    check_environment(bound(), make=bound)
    print(f"{check}: every rule of the environment protocol holds")


def _list() -> None:
    table = Table("environment", "what it is", "options", box=None)
    for name in names("environment"):
        try:
            found = part("environment", name)
        except PalaestraError as error:
            table.add_row(name, error.render().splitlines()[0], "")
        else:
            table.add_row(name, found.summary, ", ".join(found.options.model_fields))
    Console().print(table)
