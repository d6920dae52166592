"""Checks the options of a direct call of a part, as those of a recipe are checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from palaestra.registry.options import (
    OptionGroup,
    check_options,
    groups_of,
    parameters,
    put_together,
    schema,
    show_fields,
    take_apart,
)


def check_calls_of_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose calls by hand check their options."""
    where, owner = f"{function.__name__}(…)", f"`{function.__name__}`"
    by_name, groups = _given_by_name(function), groups_of(function)

    @functools.wraps(function)
    def call(*data: Any, **given: Any) -> Any:
        if given:
            given = _checked(model(), given, by_name, groups, where=where, owner=owner)
        return function(*data, **given)

    @functools.cache
    def model() -> type[pydantic.BaseModel]:
        return schema(function, function.__name__)

    return show_fields(call, groups)


def check_calls_of_class(cls: Any) -> Any:
    """The same class. Making an object of it by hand checks the options."""
    plain, by_name, groups = cls.__init__, _given_by_name(cls), groups_of(cls)

    @functools.wraps(plain)
    def __init__(self: Any, *data: Any, **given: Any) -> None:
        if type(self) is cls and given:
            given = _checked(model(), given, by_name, groups, where=f"{cls.__name__}(…)", owner=cls.__name__)
        plain(self, *data, **put_together(groups, given))

    @functools.cache
    def model() -> type[pydantic.BaseModel]:
        return schema(cls, cls.__name__)

    cls.__init__ = show_fields(__init__, groups)
    return cls


def _given_by_name(target: Callable[..., Any]) -> frozenset[str]:
    """The data parameters that a call may give by name."""
    return frozenset(p.name for p in parameters(target) if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _checked(
    model: type[pydantic.BaseModel],
    given: Mapping[str, Any],
    by_name: frozenset[str],
    groups: Mapping[str, OptionGroup],
    *,
    where: str,
    owner: str,
) -> dict[str, Any]:
    """The named arguments of a direct call, with checked options and with each group of options as one object."""
    data = {name: value for name, value in given.items() if name in by_name}
    options = {name: value for name, value in given.items() if name not in by_name}
    if not options:
        return data
    flat = take_apart(groups, options, where=where, owner=owner)
    return data | put_together(groups, check_options(model, flat, where=where, owner=owner))
