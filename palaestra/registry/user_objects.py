"""Gives the objects of a running program, such as a class in a notebook, names that a recipe can hold.

An importable object is called `module:attribute`, which any later program can load too. Other objects become attributes
of the module `palaestra_objects`, which exists in this process and in the workers that get it from there.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

MODULE = "palaestra_objects"


def name_of(thing: Any) -> str:
    """The name of a class, function or other object, for a recipe. Equal objects have equal names.

    >>> name_of(re.compile)
    're:compile'
    >>> name_of(lambda: 0)  # doctest: +ELLIPSIS
    'palaestra_objects:lambda...'
    """
    module, qualified = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module and qualified and module not in ("__main__", "builtins") and _found(module, qualified) is thing:
        return f"{module}:{qualified}"
    return f"{MODULE}:{_kept(thing, qualified or type(thing).__name__)}"


def shown(name: str) -> str:
    """A name as people read it: without the module, if it is an object of this process.

    >>> shown("palaestra_objects:Parity"), shown("gymnasium")
    ('Parity', 'gymnasium')
    """
    return name.removeprefix(f"{MODULE}:")


def kept() -> dict[str, Any]:
    """The objects of this process that have a name, for `keep` in another process."""
    return {name: thing for name, thing in vars(sys.modules.get(MODULE, ModuleType(""))).items() if name[:2] != "__"}


def keep(things: Mapping[str, Any]) -> None:
    """Give these objects of another process the names that they have there."""
    if things:
        vars(sys.modules.setdefault(MODULE, ModuleType(MODULE))).update(things)


def _found(module: str, qualified: str) -> Any:
    """The attribute of an imported module; None, if it has none of this name."""
    try:
        return getattr(importlib.import_module(module), qualified, None)
    except ImportError:
        return None


def _kept(thing: Any, wanted: str) -> str:
    """Keep the object in the module and return its name there: `wanted`, with a number if that is taken."""
    module = sys.modules.setdefault(MODULE, ModuleType(MODULE))
    stem = re.sub(r"\W", "", wanted.rpartition(".")[2]) or "object"
    number = 1
    name = stem
    while vars(module).get(name, thing) is not thing:
        number += 1
        name = f"{stem}_{number}"
    setattr(module, name, thing)
    return name
