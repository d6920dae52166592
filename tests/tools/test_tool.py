"""What must hold of tools made of functions:

1. The schema follows the signature: types, defaults, choices, lists, optional and nested ones; texts the docstring.
2. A function without docstring, an argument without type, `*args`, unknown types and wrong `Args:` are refused.
3. Arguments are checked and converted; a fault names the argument and what was expected.
4. Hand-written schemas are checked too, with references, bounds and choices (those of strangers: test_schema.py).
5. Impossible names, time-outs and costs are refused.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import pydantic
import pytest

from palaestra.errors import ContractError
from palaestra.tools import Tool, tool
from palaestra.tools.tool import WrongArguments


class Place(pydantic.BaseModel):
    """Where something is."""

    city: str
    zip: int = 0


def book(
    city: str,
    days: Annotated[int, pydantic.Field(ge=1, le=14)],
    kind: Literal["single", "double"] = "single",
    guests: list[str] | None = None,
    place: Place | None = None,
) -> str:
    """Book a room,
    if there is one.

    Args:
        city: where.
        days (int): how many,
            counted by nights.

    Returns: the number.
    """
    return city


def test_the_schema_follows_the_signature():  # rule 1
    made = tool(book, cost=0.5, timeout_s=None)
    properties = made.parameters["properties"]
    assert (made.name, made.cost, made.timeout_s) == ("book", 0.5, None)
    assert made.description == "Book a room, if there is one."
    assert made.parameters["required"] == ["city", "days"]
    assert properties["city"] == {"type": "string", "description": "where."}
    assert properties["days"]["description"] == "how many, counted by nights."
    assert (properties["days"]["minimum"], properties["days"]["maximum"]) == (1, 14)
    assert properties["kind"] == {"default": "single", "enum": ["single", "double"], "type": "string"}
    assert properties["guests"]["anyOf"] == [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}]
    assert made.signature().startswith("book(city: string, days: integer, kind: 'single' | 'double' = 'single', ")
    assert "    days: how many, counted by nights." in made.manual()


def test_decorators_names_and_methods():  # rule 1
    class Shop:
        def price(self, of: str) -> int:
            """Tell a price."""
            return len(of)

    @tool(name="cost_of", cost=1)
    async def ask(model_config: str, copy: int = 1) -> str:
        """Ask."""
        return model_config * copy

    assert tool(Shop().price).arguments({"of": "a"}) == {"of": "a"}
    assert tool(Shop().price).call(of="abc") == 3
    assert (ask.name, ask.cost) == ("cost_of", 1)
    assert ask.arguments({"model_config": "a"}) == {"model_config": "a", "copy": 1}


def no_docstring(a: int) -> int:
    return a


def no_kind(a, b: int = 1) -> int:
    """Add."""
    return a + b


def many(*numbers: int) -> int:
    """Add."""
    return sum(numbers)


def keyed(**numbers: int) -> int:
    """Add."""
    return sum(numbers.values())


def wrong_args(a: int) -> int:
    """Add.

    Args:
        a: a number.
        c: none.
    """
    return a


def strange(a: functools.partial) -> int:
    """Add."""
    return 0


def unknown(a: Nowhere) -> int:  # noqa: F821
    """Add."""
    return 0


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_docstring, "has no docstring.(.|\n)*Agents read it"),
        (no_kind, "`a` has no type annotation.(.|\n)*def no_kind\\(a: str\\)"),
        (many, r"it takes `\*numbers"),
        (keyed, r"it takes `\*\*numbers"),
        (wrong_args, "describes `c`, which is not an argument.(.|\n)*Its arguments are: a"),
        (strange, "has no JSON schema"),
        (unknown, "cannot be read"),
    ],
)
def test_unclear_functions_are_refused(function, why):  # rule 2
    with pytest.raises(ContractError, match=f"tool {function.__name__}(.|\n)*{why}"):
        tool(function)


def test_arguments_are_converted():  # rule 3
    given = tool(book).arguments({"city": "Rome", "days": "3", "place": {"city": "Rome", "zip": "7"}})
    assert given == {"city": "Rome", "days": 3, "kind": "single", "guests": None, "place": Place(city="Rome", zip=7)}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"days": 3}, "the argument `city` is missing: a text"),
        ({"city": "a", "days": "many"}, "`days` must be an integer from 1 to 14, found 'many'"),
        ({"city": "a", "days": 99}, "`days` must be an integer from 1 to 14, found 99"),
        ({"city": "a", "days": 1, "kind": "triple"}, "`kind` must be one of 'single', 'double', found 'triple'"),
        (
            {"city": "a", "days": 1, "guests": "Bo"},
            "`guests` must be a list of which each is a text or null, found 'Bo'",
        ),
        ({"city": "a", "days": 1, "day": 1}, "there is no argument `day`; there are: city, days, kind, guests, place"),
        ({"city": "a", "days": 1, "place": {"zip": 1}}, "city: field required"),
    ],
)
def test_faults_name_the_argument(given, why):  # rule 3
    with pytest.raises(WrongArguments) as caught:
        tool(book).arguments(given)
    assert why in str(caught.value)


SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"$ref": "#/$defs/Id"},
        "sizes": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "maxItems": 2},
        "mode": {"const": "fast"},
        "flag": {"type": ["boolean", "null"]},
        "any": {},
    },
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {"Id": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 2}]}},
}


def written(**changed):
    return Tool(**({"name": "t", "description": "", "parameters": SCHEMA, "call": dict} | changed))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id": 1, "sizes": [1, 2.5], "mode": "fast", "flag": None, "any": {"x": 1}}, ""),
        ({"id": 3.0}, ""),
        ({}, "the argument `id` is missing: an integer from 1 or a text of at least 2 characters"),
        ({"id": 0}, "`id` must be an integer from 1 or a text of at least 2 characters, found 0"),
        ({"id": True}, "`id` must be an integer"),
        ({"id": 1, "sizes": [0]}, "`sizes[0]` must be a number above 0, found 0"),
        (
            {"id": 1, "sizes": [1, 1, 1]},
            "`sizes` must be a list of which each is a number above 0 of at most 2 entries, found a list",
        ),
        ({"id": 1, "mode": "slow"}, "`mode` must be 'fast', found 'slow'"),
        ({"id": 1, "flag": 1}, "`flag` must be true or false or null, found 1"),
        ({"id": 1, "b": 1}, "there is no argument `b`"),
        ({"id": 10**5000}, ""),
        ({"id": 1, "flag": 10**5000}, "found a huge number"),
    ],
)
def test_written_schemas_are_checked(given, why):  # rule 4
    if not why:
        assert written().arguments(given) == given
        return
    with pytest.raises(WrongArguments) as caught:
        written().arguments(given)
    assert why in str(caught.value)


def test_schemas_that_say_little_allow_what_they_do_not_say():  # rule 4
    for parameters in ({}, {"type": "object"}, {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}}):
        made = written(parameters=parameters)
        assert made.arguments({"a": [1]}) == {"a": [1]}
        assert made.manual().startswith("t(")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "get.it"}, "cannot have this name"),
        ({"name": "-get"}, "cannot have this name"),
        ({"name": "class"}, "cannot have this name"),
        ({"name": ""}, "cannot have this name"),
        ({"name": "a" * 65}, "cannot have this name"),
        ({"timeout_s": 0}, "`timeout_s` is 0"),
        ({"cost": -1}, "`cost` is -1"),
        ({"cost": float("nan")}, "`cost` is nan"),
    ],
)
def test_senseless_tools_are_refused(changed, why):  # rule 5
    with pytest.raises(ContractError, match=why):
        written(**changed)
