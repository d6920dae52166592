"""A bound part is a part with its checked options. A recipe binds each part once, and training calls bound parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from palaestra.errors import ContractError
from palaestra.registry import Part, Section, part


class BoundPart(Section):
    """A part with its options, as a recipe writes it: `grpo`, or `{grpo: {scale: none}}`.

    `bind` finds the part in the registry, checks the options and fills in their defaults. Before that, the object holds
    only the text of the recipe and cannot be called.

    Attributes:
        name: the part's registered name.
        options: the options that the recipe gives; after binding, all options.
    """

    name: str
    options: dict[str, Any] = {}
    _part: Part | None = pydantic.PrivateAttr(None)
    _state: Any = pydantic.PrivateAttr(None)
    _iteration: Any = pydantic.PrivateAttr(None)

    def bound(self, part: Part, options: Mapping[str, Any]) -> BoundPart:
        """A copy with the registered part and its checked options."""
        copy = self.model_copy(update={"options": dict(options)})
        copy._part = part
        return copy

    @property
    def part(self) -> Part:
        """The registered part. Raises: ContractError, if the part is not bound."""
        if self._part is None:
            raise ContractError(
                where=f"part {self.name}",
                what="it is not bound, so its function is not known and its options are not checked.",
                remedy="Load the settings with `palaestra.recipe.load`, or call `bind(slot, part)`.",
            )
        return self._part

    @property
    def file(self) -> str:
        """The user's file that holds the part; empty for an installed part."""
        return "" if self._part is None else self._part.file

    @property
    def state(self) -> Any:
        """The object of a part with state, which `started` makes; None for other parts."""
        return self._state

    def started(self) -> BoundPart:
        """The part for a run. A part with state gets a new object of its class."""
        if not self.part.holds_state:
            return self
        copy = self.model_copy()
        copy._state = self.part.target(**self.options)
        return copy

    def at(self, iteration: Any) -> BoundPart:
        """The part for one iteration. It gives `iteration` to its function if that has a parameter of this name."""
        if not self.part.takes_iteration:
            return self
        copy = self.model_copy()
        copy._iteration = iteration
        return copy

    def __call__(self, *data: Any) -> Any:
        given = {} if self._iteration is None else {"iteration": self._iteration}
        if self._state is not None:
            return self._state(*data, **given)
        return self.part.target(*data, **given, **self.options)

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The columns that the part reads with its options; None, if it declares none."""
        return self.part.reads_with(self.options)

    @property
    def scope(self) -> str:
        """For a loss: the unit of tokens that each call must get whole."""
        return self.part.scope_with(self.options)

    def can(self, method: str) -> Any:
        """The method of this name of the object with state; None, if it has no such method."""
        return getattr(self._state, method, None)


def bind(slot: str, written: BoundPart) -> BoundPart:
    """Find a part in the registry and check its options. Returns the bound part.

    Raises: UnknownName, if no part has this name; RecipeError, for wrong options.
    """
    found = part(slot, written.name)
    return written.bound(found, found.check(written.options, where=f"{slot}: {written.name}"))


def bind_all(slot: str, written: Sequence[BoundPart]) -> list[BoundPart]:
    """Bind several parts of one slot. Returns them in the same order."""
    return [bind(slot, one) for one in written]
