"""Errors for former names. Importing a name of an earlier version raises an error that gives the new name."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.errors import ContractError

REMEDY = "Rename it; docs/renames.yaml lists every name that has changed."


def former_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module in which names have changed.

    Args:
        module: the module's name.
        names: former name → the end of the message "it is …", such as "`Play` now".
    """

    def find(name: str) -> Any:
        """Raises: ContractError, for a former name; AttributeError, for any other name."""
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ContractError(where=f"{module}.{name}", what=f"it is {names[name]}.", remedy=REMEDY)

    return find


class FormerModules(importlib.abc.MetaPathFinder):
    """Raises an error on the import of a module that no longer exists. The error says where its content is now.

    Args:
        modules: former name of a module → where its content is now.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        sys.meta_path.append(self)  # comes last: Python asks it only for modules that no other finder finds

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises: ContractError, for a former module."""
        if name in self._modules:
            raise ContractError(where=name, what=f"this module no longer exists: {self._modules[name]}.", remedy=REMEDY)
