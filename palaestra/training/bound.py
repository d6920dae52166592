"""Bound parts: a part of a slot with the options that a recipe gives it. Knows the registry; knows no part by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.data.protocols import Look
from palaestra.registry import Part, part
from palaestra.training.settings import Use


@dataclass(frozen=True, slots=True)
class Bound:
    """A part with its options: call it with its data.

    `held` is the one object that a run makes of a part with state; it is called with a `Look` beside the data.
    """

    part: Part
    options: Mapping[str, Any]
    held: Any = None

    def __call__(self, *data: Any) -> Any:
        if self.held is not None:
            return self.held(*data)
        return self.part.target(*data, **self.options)

    def looking(self, look: Look) -> Bound:
        """The same part, called with its data alone in this iteration."""
        return self if self.held is None else Bound(self.part, self.options, lambda *data: self.held(*data, look))

    def can(self, method: str) -> Any:
        """This method of the object held, or None."""
        return getattr(self.held, method, None)


def bind(slot: str, use: Use) -> Bound:
    """The part of this name with checked options; of a part with state, a new object.

    Raises: UnknownName, RecipeError.
    """
    found = part(slot, use.name)
    options = found.check(use.options, where=f"{slot}: {use.name}")
    return Bound(found, options, found.target(**options) if found.holds_state else None)


def bind_all(slot: str, uses: Sequence[Use]) -> list[Bound]:
    """Several parts of one slot, in order."""
    return [bind(slot, use) for use in uses]
