"""What must not stand together: choices that are sound by themselves and wrong side by side.

Each line of `CLASHES` is one reason. Knows names of parts, their options and settings. Knows nothing of what parts
compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palaestra.errors import RecipeError
from palaestra.recipe.layers import slot_at
from palaestra.recipe.parts import Entry, RecipePart


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPattern:
    """A part in a recipe.

    Attributes:
        slot: where it stands. names: any of these; none given: any part of the slot.
        options: option → values, of which it has one; `None` among them is an option left out.
        has: options that have a value.
    """

    slot: str
    names: Collection[str] = ()
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)
    has: Collection[str] = ()

    def found(self, parts: Sequence[RecipePart]) -> Iterator[RecipePart]:
        """The parts of a recipe that this describes."""
        for used in parts:
            values = used.values
            if (
                slot_at(tuple(used.path.split("."))) == self.slot
                and (not self.names or used.name in self.names)
                and all(key in values and values[key] in allowed for key, allowed in self.options.items())
                and all(values.get(key) is not None for key in self.has)
            ):
                yield used


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingPattern:
    """A setting of a recipe with one of these values."""

    key: str
    values: Collection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Two choices that exclude each other.

    Attributes:
        one, other: the choices; no other: `one` is wrong by itself.
        why: what would happen. ways: out of it.
        ordered: only where `one` stands before `other`.
    """

    one: PartPattern
    other: PartPattern | SettingPattern | None = None
    why: str
    ways: str
    ordered: bool = False


INSIDE_FIRST = ("sequence-mean", "step-mean", "trajectory-step-mean")  # averages of a trajectory's own tokens or rows
NOT_TRAJECTORIES = ("token-mean", "group-mean", "agent-mean", *INSIDE_FIRST)

CLASHES = (
    Clash(
        one=PartPattern(slot="advantage", names=("hapo",), options={"average": ("token",)}),
        other=SettingPattern(key="aggregate.how", values=INSIDE_FIRST),
        why="Its advantages balance over tokens; an average over a trajectory's own tokens corrects for length again.",
        ways="Set aggregate.how=token-mean, or advantage.hapo.average=trajectory.",
    ),
    Clash(
        one=PartPattern(slot="loss", names=("squared_objective",)),
        other=SettingPattern(key="aggregate.how", values=NOT_TRAJECTORIES),
        why="Its square belongs to a trajectory, and this average would weigh trajectories by their lengths.",
        ways="Set aggregate.how=sequence-sum, the mean over trajectories.",
    ),
    Clash(
        one=PartPattern(slot="loss", options={"ratio": ("trajectory", "invocation")}, has=("high_foreign",)),
        why="One ratio for many rows cannot have another bound in some of them.",
        ways="Set ratio: turn or token, or leave `high_foreign` out.",
    ),
    Clash(
        one=PartPattern(slot="advantage", names=("canon",)),
        other=PartPattern(slot="advantage", names=("whiten",)),
        why="Dividing by a deviation undoes what the two halves of a group differ in.",
        ways="Leave `whiten` out; for a scale, set the learning rate.",
    ),
    Clash(
        one=PartPattern(slot="advantage", names=("canon",)),
        other=PartPattern(slot="advantage", options={"scale": ("std",)}),
        why="Dividing by a deviation undoes what the two halves of a group differ in.",
        ways="Set `scale: none`.",
    ),
    Clash(
        one=PartPattern(slot="selection", names=("resample_on_correct",)),
        other=PartPattern(slot="selection", names=("constant_groups", "widest_groups", "resample_on_correct")),
        ordered=True,
        why="Both decide who stays in a group, and after the resampling a group looks more alike than it was.",
        ways="Drop groups first, then resample what is left: write `resample_on_correct` once, and last.",
    ),
)


def refuse_together(parts: Sequence[RecipePart], rows: Mapping[str, Entry]) -> None:
    """Refuse a recipe in which two choices of `CLASHES` meet.

    Raises: RecipeError, with the place of the later choice, the reason and the way out.
    """
    for clash in CLASHES:
        for used in clash.one.found(parts):
            _refuse(clash, used, parts, rows)


def _refuse(clash: Clash, used: RecipePart, parts: Sequence[RecipePart], rows: Mapping[str, Entry]) -> None:
    if clash.other is None:
        options = ", ".join(f"`{key}: {used.values[key]}`" for key in (*clash.one.options, *clash.one.has))
        raise RecipeError(where=used.mark.where, what=f"`{used.name}` has {options}.\n  {clash.why}", remedy=clash.ways)
    if isinstance(clash.other, SettingPattern):
        row = rows[clash.other.key]
        if row.value in clash.other.values:
            where = used.mark.where if row.mark.source == "default" else row.mark.where
            what = f"`{used.name}` does not go with `{clash.other.key}: {row.value}`.\n  {clash.why}"
            raise RecipeError(where=where, what=what, remedy=clash.ways)
        return
    place = next(place for place, part in enumerate(parts) if part is used)
    for other in clash.other.found(parts[place + 1 :] if clash.ordered else parts):
        if other is not used:
            what = (
                f"`{used.name}` does not go with `{other.name}`{' after it' if clash.ordered else ''}.\n  {clash.why}"
            )
            raise RecipeError(where=other.mark.where, what=what, remedy=clash.ways)
