"""BoundPart: a part with its options. A recipe binds each part once and gives the bound parts to training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from palaestra.errors import ContractError
from palaestra.registry import Part, Section, part


class BoundPart(Section):
    """A part with its options, as a recipe names it: `grpo`, or `{grpo: {scale: none}}`.

    `bind` finds the part in the registry, checks the options and fills in their defaults. A recipe does that once for
    all its parts. Before that the object holds only what the recipe says, and it cannot be called.

    Attributes:
        name: the part's registered name. options: those that the recipe gives; after binding, all of them.
    """

    name: str
    options: dict[str, Any] = {}
    _part: Part | None = pydantic.PrivateAttr(None)
    _state: Any = pydantic.PrivateAttr(None)
    _iteration: Any = pydantic.PrivateAttr(None)

    def bound(self, part: Part, options: Mapping[str, Any]) -> BoundPart:
        """A copy that holds the registered part and its checked options."""
        copy = self.model_copy(update={"options": dict(options)})
        copy._part = part
        return copy

    @property
    def part(self) -> Part:
        """The registered part with what it declares. Raises: ContractError, if no recipe has bound it."""
        if self._part is None:
            raise ContractError(
                where=f"part {self.name}",
                what="it is not bound yet: it was not looked up in the registry, and its options are not checked.",
                remedy="Load settings by `palaestra.recipe.load`, or call `palaestra.bound.bind(slot, part)`.",
            )
        return self._part

    @property
    def file(self) -> str:
        """The file of one's own that a bound part was loaded from; empty for others."""
        return "" if self._part is None else self._part.file

    @property
    def state(self) -> Any:
        """The object that a run makes of a part with state; None for a function, and before `started`."""
        return self._state

    def started(self) -> BoundPart:
        """The part as a run uses it. A part that is a class with state gets a new object of that class."""
        if not self.part.holds_state:
            return self
        copy = self.model_copy()
        copy._state = self.part.target(**self.options)
        return copy

    def at(self, iteration: Any) -> BoundPart:
        """The same part for this iteration. A call passes `iteration` on if the part has a parameter of that name."""
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
        """For a loss: the unit of tokens that one call must see whole."""
        return self.part.scope_with(self.options)

    def can(self, method: str) -> Any:
        """The method of this name of the object with state, or None if there is none."""
        return getattr(self._state, method, None)


def bind(slot: str, written: BoundPart) -> BoundPart:
    """The registered part of this name, with checked options.

    Raises: UnknownName, for a name that no part has; RecipeError, for wrong options; ContractError, for a part that
        was written for an earlier version.
    """
    found = part(slot, written.name)
    refuse_former(found, where=f"{slot}: {written.name}")
    return written.bound(found, found.check(written.options, where=f"{slot}: {written.name}"))


def bind_all(slot: str, written: Sequence[BoundPart]) -> list[BoundPart]:
    """Several parts of one slot, in order."""
    return [bind(slot, one) for one in written]


def refuse_former(found: Part, *, where: str) -> None:
    """Refuse a part whose data parameter has a former name. Raises: ContractError."""
    if "look" in found.data:
        raise ContractError(
            where=where,
            what="its data parameter `look` is called `iteration` now, and `look.step` is `iteration.number`.",
            remedy="Rename both in the part.",
        )
