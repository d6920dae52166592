"""Parts as the registry finds them, for tests that must hold for every part of a slot."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from palaestra.catalogue import Declaration, declarations
from palaestra.registry import index


@cache
def declared() -> list[Declaration]:
    """What the source text says of every part; it is read once."""
    return declarations()


def target(slot: str, name: str) -> Any:
    """The function or class that is registered under this name."""
    module, _, attribute = index()[slot][name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def targets(*slots: str) -> list[Any]:
    """Every function or class of these slots, by name."""
    return [target(slot, name) for slot in slots for name in sorted(index()[slot])]


class Slot:
    """The functions and classes of a slot as attributes: `Slot("advantage").gigpo`."""

    def __init__(self, *slots: str) -> None:
        self._slots = slots

    def __getattr__(self, attribute: str) -> Any:
        for slot in self._slots:
            for name, place in index()[slot].items():
                if place.endswith(f":{attribute}"):
                    return target(slot, name)
        raise AttributeError(f"no part of {', '.join(self._slots)} is called {attribute}")
