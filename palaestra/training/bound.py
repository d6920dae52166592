"""Bound parts: a part of a slot with the options that a recipe gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart, complete
from palaestra.errors import ContractError
from palaestra.registry import STAGES, Part, part
from palaestra.training.settings import Use

FORMER_MEMBERS = {"warming": "`ready` now, and means the opposite"}  # of parts with state


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
    options = found.check(use.options, where=f"{slot}: {use.name}")
    held = found.target(**options) if found.holds_state else None
    if held is not None and slot in STAGES:
        _check_members(held, where=f"{slot}: {use.name}")
    return Bound(found, options, held)


def _check_members(held: Any, *, where: str) -> None:
    """Raises: ContractError, for a part that lacks a member of `StatefulPart` or has one by its earlier name."""
    for former, now in FORMER_MEMBERS.items():
        if hasattr(held, former):
            raise ContractError(where=where, what=f"its attribute `{former}` is called {now}.", remedy="Rename it.")
    complete(held, StatefulPart, where=where)


def bind_all(slot: str, uses: Sequence[Use]) -> list[Bound]:
    """Several parts of one slot, in order."""
    return [bind(slot, use) for use in uses]
