"""Former names: importing a name of an earlier version raises an error that gives the present name."""

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
        module: the module's name. names: former name → the end of the message "it is …", such as "`Play` now".
    """

    def find(name: str) -> Any:
        """Refuse a missing name. Raises: ContractError, for a former name; AttributeError, for any other."""
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ContractError(where=f"{module}.{name}", what=f"it is {names[name]}.", remedy=REMEDY)

    return find


class FormerModules(importlib.abc.MetaPathFinder):
    """Refuses to import modules that no longer exist, and says where their content is now.

    Args:
        modules: former name of the module → where its content is now.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        sys.meta_path.append(self)  # the last finder: Python asks it only for modules that no other finder has

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises: ContractError, for a former module."""
        if name in self._modules:
            raise ContractError(where=name, what=f"this module no longer exists: {self._modules[name]}.", remedy=REMEDY)
