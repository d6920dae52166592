"""Finds the parts of a recipe that never run, and the keys that no part reads.

For example, some learners use no loss, and experience from files uses no sampler. Such a part or key is treated like an
idle option (`idle.py`): it is refused if somebody wrote it, and `explain` does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from palaestra.recipe.idle import refuse_written
from palaestra.recipe.layers import Place, field_at
from palaestra.recipe.origins import Mark, Node
from palaestra.recipe.parts import RecipePart
from palaestra.registry import declared
from palaestra.registry.column_names import CREDIT


def runs(used: RecipePart, parts: Sequence[RecipePart]) -> bool:
    """Whether a part runs. An estimator without state runs only if a factor, a learner or a loss reads the result."""
    readers = [other.part.reads_with(other.values) for other in _readers(parts)]
    estimators = [other.part for other in parts if other.part.slot == "advantage"]
    gives = {*CREDIT, *(column for estimator in estimators for column in estimator.writes or ())}
    pure = used.part.slot == "advantage" and not used.part.holds_state
    return not pure or any(reads is None or not gives.isdisjoint(reads) for reads in readers)


def _readers(parts: Sequence[RecipePart]) -> list[RecipePart]:
    """The parts that may read credit: factors, learners, and the losses and regularizers that learners run."""
    learners = [other for other in parts if other.part.slot == "learner"]
    slots = {"weights", "learner"}
    if any(declared(learner.part.target, "runs") is not None for learner in learners):
        slots |= {"loss", "regularizer"}
    return [other for other in parts if other.part.slot in slots]


def unread_keys(parts: Sequence[RecipePart], tree: Node, keys: Collection[str]) -> Iterator[tuple[Place, Any]]:
    """The keys that all parts at one place declare in `ignores`: the place of each key, and its default.

    Args:
        keys: of the recipe. In `ignores`, `policies.*.loss` means the losses of all policies.

    Raises: RecipeError, if somebody wrote such a key in the same layer as these parts or in a later one.
    """
    for path in dict.fromkeys(used.path for used in parts):
        here, section = [used for used in parts if used.path == path], path.rpartition(".")[0]
        since = max((used.mark for used in here), key=lambda mark: mark.layer)
        for name in dict.fromkeys(name for used in here for name in declared(used.part.target, "ignores")):
            if all(name in declared(used.part.target, "ignores") for used in here):
                pattern = re.escape(f"{section}.{name}" if section else name).replace(r"\*", "[^.]+")
                for key in [key for key in keys if re.fullmatch(pattern, key)]:
                    place = tuple(key.split("."))
                    field, node = field_at(place), tree.get(*place)
                    default = field.get_default(call_default_factory=True) if field is not None else None
                    if node is not None and node.plain() != default:
                        _refuse(place, tree, since, f"{here[0].part.slot} `{here[0].name}` does not read")
                    yield place, default


def unread_estimators(parts: Sequence[RecipePart], tree: Node) -> Iterator[tuple[Place, Any]]:
    """The place of the estimators, if none of them runs.

    Raises: RecipeError, if somebody wrote them in the same layer as the loss, factors and learners or in a later one.
    """
    estimators = [used for used in parts if used.path == "advantage"]
    if estimators and not any(runs(used, parts) for used in estimators):
        since = max((used.mark for used in _readers(parts)), key=lambda mark: mark.layer)
        _refuse(("advantage",), tree, since, "no loss, factor or learner reads")
        yield ("advantage",), None


def _refuse(place: Place, tree: Node, since: Mark, why: str) -> None:
    node, key = tree.get(*place), ".".join(place)
    refuse_written(key, node.mark if node is not None else None, since, why=f"{why} `{key}`.")
