"""Bound parts: a part of a slot with the options that a recipe gives it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import ContractError
from palaestra.registry import STAGES, Part, part
from palaestra.training.settings import Use


@dataclass(frozen=True, slots=True)
class Bound:
    """A part with its options: call it with its data.

    Attributes:
        held: the one object that a run makes of a part with state.
        iteration: given to a part that takes it; see `at`.
    """

    part: Part
    options: Mapping[str, Any]
    held: Any = None
    iteration: Iteration | None = None

    def __call__(self, *data: Any) -> Any:
        given = {} if self.iteration is None else {"iteration": self.iteration}
        if self.held is not None:
            return self.held(*data, **given)
        return self.part.target(*data, **given, **self.options)

    def at(self, iteration: Iteration) -> Bound:
        """The same part in this iteration: it gets the iteration beside its data, if it has a parameter for it."""
        return replace(self, iteration=iteration) if self.part.takes_iteration else self

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The columns that it reads with its options; None, if it does not say."""
        return self.part.reads_with(self.options)

    @property
    def scope(self) -> str:
        """Of a loss: the unit of tokens that it must see whole."""
        return self.part.scope_with(self.options)

    def can(self, method: str) -> Any:
        """This method of the object held, or None."""
        return getattr(self.held, method, None)


def bind(slot: str, use: Use) -> Bound:
    """The part of this name with checked options; of a part with state, a new object.

    Raises: UnknownName, RecipeError; ContractError, for a part of an earlier version of the contract.
    """
    found = part(slot, use.name)
    if "look" in found.data:
        raise ContractError(
            where=f"{slot}: {use.name}",
            what="its data parameter `look` is called `iteration` now, and `look.step` is `iteration.number`.",
            remedy="Rename both.",
        )
    if found.holds_state and slot in STAGES and StatefulPart not in inspect.getmro(found.target):  # type: ignore[arg-type]
        raise ContractError(
            where=f"{slot}: {use.name}",
            what="it is a class that does not inherit from `palaestra.data.protocols.StatefulPart`.",
            remedy="Inherit from it; `ready` is what was `not warming`. A part that remembers nothing is a function.",
        )
    options = found.check(use.options, where=f"{slot}: {use.name}")
    return Bound(found, options, found.target(**options) if found.holds_state else None)


def bind_all(slot: str, uses: Sequence[Use]) -> list[Bound]:
    """Several parts of one slot, in order."""
    return [bind(slot, use) for use in uses]
