"""BoundPart: a part with its options. A recipe binds each part once, and training is handed bound parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from palaestra.errors import ContractError
from palaestra.registry import Part, Section, part


class BoundPart(Section):
    """A part with its options, as a recipe names it: `grpo`, or `{grpo: {scale: none}}`.

    `bind` finds the part in the registry, checks the options and fills in their defaults. A recipe does that once for
    all its parts; before, the object holds what was written and can do nothing.

    Attributes:
        name: of the part. options: as written; after binding all of them.
    """

    name: str
    options: dict[str, Any] = {}
    _part: Part | None = pydantic.PrivateAttr(None)
    _state: Any = pydantic.PrivateAttr(None)
    _iteration: Any = pydantic.PrivateAttr(None)

    def bound(self, part: Part, options: Mapping[str, Any]) -> BoundPart:
        """This part, found and with checked options."""
        copy = self.model_copy(update={"options": dict(options)})
        copy._part = part
        return copy

    @property
    def part(self) -> Part:
        """What is declared of it. Raises: ContractError, if no recipe has bound it."""
        if self._part is None:
            raise ContractError(
                where=f"part {self.name}",
                what="it is written and not bound: nobody has looked it up and checked its options.",
                remedy="Load settings by `palaestra.recipe.load`, or call `palaestra.bound.bind(slot, part)`.",
            )
        return self._part

    @property
    def file(self) -> str:
        """The file of one's own that a bound part was loaded from; empty for others."""
        return "" if self._part is None else self._part.file

    @property
    def state(self) -> Any:
        """The one object that a run makes of a part with state; None for a function. See `started`."""
        return self._state

    def started(self) -> BoundPart:
        """The part as a run holds it: with an object of its own, if the part is a class with state."""
        if not self.part.holds_state:
            return self
        copy = self.model_copy()
        copy._state = self.part.target(**self.options)
        return copy

    def at(self, iteration: Any) -> BoundPart:
        """The same part in this iteration: it gets the iteration beside its data, if it has a parameter for it."""
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
        """The columns that it reads with its options; None, if it does not say."""
        return self.part.reads_with(self.options)

    @property
    def scope(self) -> str:
        """Of a loss: the unit of tokens that it must see whole."""
        return self.part.scope_with(self.options)

    def can(self, method: str) -> Any:
        """This method of the object with state, or None."""
        return getattr(self._state, method, None)


def bind(slot: str, written: BoundPart) -> BoundPart:
    """The part of this name with checked options.

    Raises: UnknownName, RecipeError; ContractError, for a part of an earlier version of the contract.
    """
    found = part(slot, written.name)
    refuse_former(found, where=f"{slot}: {written.name}")
    return written.bound(found, found.check(written.options, where=f"{slot}: {written.name}"))


def bind_all(slot: str, written: Sequence[BoundPart]) -> list[BoundPart]:
    """Several parts of one slot, in order."""
    return [bind(slot, one) for one in written]


def refuse_former(found: Part, *, where: str) -> None:
    """Raises: ContractError, for a part that asks for its data by a former name."""
    if "look" in found.data:
        raise ContractError(
            where=where,
            what="its data parameter `look` is called `iteration` now, and `look.step` is `iteration.number`.",
            remedy="Rename both.",
        )
