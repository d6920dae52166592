"""Former names: who imports a name of an earlier version gets one line that says the present one."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.errors import ContractError

REMEDY = "Rename it; docs/renames.yaml lists every name that has changed."


def former_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module some of whose names have changed.

    Args:
        module: its name. names: former name → what is said of it, such as "`Play` now".
    """

    def find(name: str) -> Any:
        """Raises: ContractError, for a former name; AttributeError, for any other."""
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ContractError(where=f"{module}.{name}", what=f"it is {names[name]}.", remedy=REMEDY)

    return find


class FormerModules(importlib.abc.MetaPathFinder):
    """Says where the content of modules went that are no more.

    Args:
        modules: former name → where its content is now.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        sys.meta_path.append(self)  # the last one: it is asked only for what nobody finds

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises: ContractError, for a former module."""
        if name in self._modules:
            raise ContractError(where=name, what=f"this module is no more: {self._modules[name]}.", remedy=REMEDY)
