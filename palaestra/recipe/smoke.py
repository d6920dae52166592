"""Makes a smoke run of a recipe: everything is small, so that a few seconds show whether the recipe works.

The same changes are made to every recipe:

    a number that is larger than in `LARGEST`    becomes the number in `LARGEST`
    a key in `INSTEAD`                           gets the value in `INSTEAD`
    a part that declares options as `small`      gets these options, where they are smaller than its own
    the list `reward`                            gets one more part, which pays rows differently: a policy that is so
                                                 small solves no task, and without it would have nothing to learn from
    the recipe's own section `smoke`             wins over these changes
    overrides of the command line                win over everything

The run folder is `runs/smoke/NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palaestra.recipe.beside import LAYER
from palaestra.recipe.layers import override, parts_at
from palaestra.recipe.origins import Mark, Node
from palaestra.recipe.resolved import Recipe
from palaestra.registry import declared

VARIED = "palaestra.testing.rewards:varied"
LARGEST: dict[str, int] = {
    "training.iterations": 2,
    "training.epochs": 2,
    "rollout.tasks": 2,
    "rollout.group": 4,
    "rollout.max_turns": 16,
    "warm_start.episodes": 8,
    "warm_start.epochs": 1,
    "evaluation.tasks": 4,
}
INSTEAD: dict[str, Any] = {
    "training.checkpoint_every": None,
    "training.threads": 1,
    "evaluation.every": None,
    "warm_start.keep": None,
}


def small(recipe: Recipe) -> Node:
    """The tree of a recipe with these changes. The origin of each changed number is `--smoke (was 150)`."""
    tree = recipe.tree
    for key, value in _changes(recipe):
        if recipe.rows[key].mark.layer < LAYER:
            tree = override(tree, key, Node(value, Mark(f"--smoke (was {recipe.rows[key].value})", f"{key}: {value}")))
    if recipe.rows["reward"].mark.layer < LAYER:
        tree = override(tree, "reward", _paid(tree))
    return tree


def _paid(tree: Node) -> Node:
    """The list `reward` with one more part."""
    mark = Mark("--smoke", f"reward: {VARIED}")
    return Node([*parts_at(tree, ("reward",)), Node(VARIED, mark)], mark)


def _changes(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    rows = recipe.rows
    yield "run", f"runs/smoke/{recipe.settings.name}"
    for key, largest in LARGEST.items():
        if key in rows and rows[key].value > largest:
            yield key, largest
    for key, value in INSTEAD.items():
        if key in rows and rows[key].value != value:
            yield key, value
    for used in recipe.parts:
        for name, value in declared(used.part.target, "small").items():
            if name in used.options and used.options[name].value > value:
                yield f"{used.key}.{name}", value
