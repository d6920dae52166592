"""Completes an object of a user by the defaults of a protocol, and refuses one that lacks a method."""

from __future__ import annotations

import functools
from typing import Protocol, TypeVar

from palaestra.errors import ContractError

Made = TypeVar("Made")


def complete(made: Made, protocol: type, *, where: str) -> Made:
    """Return `made` if it has every member of the protocol.

    Raises: ContractError, which names the first missing member and the class that has its default.
    """
    for name in _members(protocol):
        if not hasattr(type(made), name) and not hasattr(made, name):  # the class first, so that no property runs
            raise ContractError(
                where=where,
                what=f"{type(made).__name__} has no `{name}`.",
                remedy=f"Inherit its default, `class {type(made).__name__}({protocol.__name__})` with `from "
                f"{protocol.__module__} import {protocol.__name__}`, or write it.",
            )
    return made


@functools.cache
def _members(protocol: type) -> tuple[str, ...]:
    found = [name for one in protocol.__mro__ if one not in (object, Protocol) for name in _own(one)]
    return tuple(dict.fromkeys(name for name in found if not name.startswith("_")))


def _own(protocol: type) -> list[str]:
    return [*vars(protocol).get("__annotations__", {}), *vars(protocol)]
