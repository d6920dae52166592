"""A clash is a choice that cannot stand in one recipe with a part. `palaestra.recipe.together` refuses such recipes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPattern:
    """Matches a part in a recipe.

    Attributes:
        slot: the part's slot.
        names: the part has one of these names; empty: any part of the slot.
        options: option → values; each of these options has one of its values.
    """

    slot: str
    names: Collection[str] = ()
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingPattern:
    """Matches a setting of a recipe that has one of these values."""

    key: str
    values: Collection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A choice that excludes the part that declares the clash.

    Attributes:
        options: option → values; the clash holds only if each of these options of the part has one of its values.
        has: options of the part; the clash holds only if none of them is None.
        other: the choice that is excluded; None: the part's own options exclude each other.
        why: what would go wrong.
        ways: what the user can do instead.
        ordered: the clash holds only if `other` comes after the part.
    """

    why: str
    ways: str
    other: PartPattern | SettingPattern | None = None
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)
    has: Collection[str] = ()
    ordered: bool = False
