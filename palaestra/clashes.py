"""Clashes: what a part does not go with, as its registration says. `palaestra.recipe.together` refuses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPattern:
    """A part in a recipe.

    Attributes:
        slot: where it stands. names: any of these; none given: any part of the slot.
        options: option → values, of which it has one.
    """

    slot: str
    names: Collection[str] = ()
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingPattern:
    """A setting of a recipe with one of these values."""

    key: str
    values: Collection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """What the part that declares it does not go with.

    Attributes:
        options: only where the part has one of these values: option → values. has: options that have a value.
        other: the choice that it excludes; none: its own options exclude each other.
        why: what would happen. ways: out of it.
        ordered: only where `other` stands behind the part.
    """

    why: str
    ways: str
    other: PartPattern | SettingPattern | None = None
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)
    has: Collection[str] = ()
    ordered: bool = False
