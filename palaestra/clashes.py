"""Clashes: the choices that a part's registration forbids beside it. `palaestra.recipe.together` refuses them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPattern:
    """A part in a recipe.

    Attributes:
        slot: the part's slot. names: the part has one of these names; empty: any part of the slot.
        options: option → values; the part has one of these values for each of these options.
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
    """A choice that cannot stand in one recipe with the part that declares the clash.

    Attributes:
        options: option → values; the clash holds only if the part has one of these values for each of these options.
        has: options of the part; the clash holds only if each of them has a value other than None.
        other: the choice that the part excludes; None: the part's own options exclude each other.
        why: what would go wrong. ways: what the user can do instead.
        ordered: the clash holds only if `other` stands behind the part.
    """

    why: str
    ways: str
    other: PartPattern | SettingPattern | None = None
    options: Mapping[str, Collection[Any]] = field(default_factory=dict)
    has: Collection[str] = ()
    ordered: bool = False
