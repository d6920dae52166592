"""What must hold where schemas come from strangers:

1. A fault is one line with the argument's place, what was found, and what is allowed, also inside of lists and objects.
2. A schema that is not valid, too large, too deep, or that refers outside, nowhere or in a circle is refused.
3. No comparison takes long: catastrophic patterns, growing references and deep arguments end it with one line.
4. Nothing is fetched from the network, and no part of a schema changes the rules by which it is read.
5. Older drafts and trees of references work.
6. A command that reads no schema does not load jsonschema, which takes seconds beside some packages.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from palaestra.errors import ContractError
from palaestra.tools import Tool
from palaestra.tools.schema import MOST_CHARS, first_fault, fits
from palaestra.tools.tool import WrongArguments

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
CATASTROPHE = "^(a|aa)+$"
VICTIM = "a" * 60 + "!"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "object", "properties": {"zip": {"type": "integer", "minimum": 1}}, "required": ["zip"]},
        "sizes": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "half": {"type": "number", "multipleOf": 0.5},
        "names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "shape": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}}
                | {"required": ["kind", "radius"], "additionalProperties": False},
                {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}}}
                | {"required": ["kind", "side"], "additionalProperties": False},
                {"type": "null"},
            ]
        },
        "more": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
        "gone": False,
    },
    "dependentRequired": {"code": ["half"]},
}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"place": {"zip": 0}}, "`place.zip` must be an integer from 1, found 0"),
        ({"place": {}}, "the argument `place.zip` is missing: an integer from 1"),
        ({"sizes": [1, 0]}, "`sizes[1]` must be a number above 0, found 0"),
        ({"sizes": [float("inf")]}, "`sizes[0]` must be a number above 0, found inf"),
        ({"code": "ab", "half": 1}, "`code` must be a text that matches the pattern ^[A-Z]{3}$, found 'ab'"),
        ({"half": 0.7}, "`half` must be a number that is a multiple of 0.5, found 0.7"),
        ({"names": ["a", "a"]}, "`names` must be a list of which each is a text of different entries, found a list"),
        ({"shape": {"kind": "square"}}, "the argument `shape.side` is missing: a number"),
        ({"shape": {"kind": "circle", "radius": "1"}}, "`shape.radius` must be a number, found '1'"),
        ({"shape": 3}, "`shape` must be an object or null, found 3"),
        ({"more": {"x_a": 1, "y": 1}}, "there is no argument `more.y`; there are: none"),
        ({"more": {"x_a": "1"}}, "`more.x_a` must be an integer, found '1'"),
        ({"gone": 1}, "the arguments do not fit: False schema does not allow 1"),
        ({"code": "ABC"}, "the arguments do not fit: 'half' is a dependency of 'code'"),
        ({"plaice": 1}, "there is no argument `plaice`; there are: place, sizes, code, half, names, shape, more, gone"),
        ({"half": 10**400}, None),
        ({"shape": None, "more": {"x_a": 1}, "code": "ABC", "half": 1.5, "sizes": (1, 2)}, None),
    ],
)
def test_faults_are_one_line(given: dict[str, Any], why: str | None) -> None:  # rule 1
    assert first_fault(SCHEMA, given) == why


def test_further_arguments_are_wrong_unless_allowed() -> None:  # rule 1
    assert "there is no argument `b`" in str(first_fault(schema(a={}), {"b": 1}))
    for said in ({"additionalProperties": True}, {"additionalProperties": {"type": "integer"}}, {"allOf": [{}]}):
        assert first_fault(schema(a={}) | said, {"b": 1}) is None
    assert first_fault({"type": "object"}, {"b": 1}) is None
    assert "`b` must be an integer" in str(first_fault({"additionalProperties": {"type": "integer"}}, {"b": "x"}))


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


CIRCLE = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}]}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (schema(a={"type": "text"}), "at properties/a/type, 'text' is not valid"),
        (schema(a={"minimum": "1"}), "at properties/a/minimum, '1' is not of type 'number'"),
        ({"type": "object", "required": "a"}, "at required, 'a' is not of type 'array'"),
        (schema(a={"enum": ["x" * MOST_CHARS]}), "characters, and 100,000 are the most"),
        (schema(a=nested(60)), "more than 32 deep"),
        (schema(a=nested(5000)), "cannot be written as JSON"),
        (schema(a={"$ref": "http://127.0.0.1:9/a.json"}), "refers to `http://127.0.0.1:9/a.json`, outside of itself"),
        (schema(a={"$ref": "file:///etc/passwd"}), "outside of itself"),
        (schema(a={"$dynamicRef": "other.json#x"}), "outside of itself"),
        (schema(a={"$ref": "#/$defs/A"}), "refers to `#/$defs/A`, but has no such place"),
        (schema(a={"$ref": "#/$defs/A"}) | CIRCLE, "lead in a circle"),
        (schema(a={"not": {"$ref": "#/properties/a"}}), "lead in a circle"),
        (schema(a={"pattern": "("}), "its pattern '(' cannot be read"),
        (schema(a={"patternProperties": {"[": {}}}), "its pattern '[' cannot be read"),
        (schema(default={"pattern": "("}), "its pattern '(' cannot be read"),
        (schema(a={"pattern": "a" * 2000}), "a pattern has 2,000 characters"),
        (schema(a={"const": object()}), "cannot be written as JSON"),
    ],
)
def test_unusable_schemas_are_refused(bad: dict[str, Any], why: str) -> None:  # rule 2
    with pytest.raises(ContractError) as caught:
        Tool(name="t", description="", parameters=bad, call=dict)
    assert "tool 't'" in str(caught.value)
    assert why in str(caught.value)


def laughs(levels: int) -> dict[str, Any]:
    """Each definition asks for the next one twice."""
    twice = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(levels)}
    return schema(a={"$ref": "#/$defs/L0"}) | {"$defs": twice | {f"L{levels}": {"type": "integer"}}}


DEEP: Any = 1
for _ in range(500):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("hostile", "given"),
    [
        (schema(a={"pattern": CATASTROPHE}), {"a": VICTIM}),
        (schema(a={"items": {"pattern": CATASTROPHE}}), {"a": [VICTIM] * 50}),
        (schema(a={"patternProperties": {CATASTROPHE: {}}}), {"a": {VICTIM: 1}}),
        (schema(a={"patternProperties": {CATASTROPHE: {}}, "additionalProperties": False}), {"a": {VICTIM: 1}}),
        (schema(a={"propertyNames": {"pattern": CATASTROPHE}}), {"a": {VICTIM: 1}}),
        (schema(a={"$schema": DRAFT_7, "pattern": CATASTROPHE}), {"a": VICTIM}),
        (schema(a={"$ref": "#/default"}) | {"default": {"$schema": DRAFT_7, "pattern": CATASTROPHE}}, {"a": VICTIM}),
        ({"$schema": DRAFT_7} | schema(a={"not": {"pattern": CATASTROPHE}}, b={"$ref": "#"}), {"b": {"a": VICTIM}}),
        (laughs(40), {"a": 1}),
        (schema(a={}), {"a": DEEP}),
        (schema(a={"items": {"$ref": "#/properties/a"}}), {"a": DEEP}),
        (schema(a={"$ref": "#/default"}) | {"default": {"items": {"$ref": "http://127.0.0.1:9/a.json"}}}, {"a": [1]}),
        (schema(a={"$ref": "#/default"}) | {"default": {"items": {"pattern": "("}}}, {"a": ["x"]}),
    ],
)
def test_no_comparison_takes_long(
    hostile: dict[str, Any], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # rules 3 and 4
    monkeypatch.setattr(socket, "socket", None)
    began = time.process_time()
    with pytest.raises(WrongArguments, match="cannot be compared") as caught:
        Tool(name="t", description="", parameters=hostile, call=dict).arguments(given)
    assert time.process_time() - began < 5
    assert "\n" not in str(caught.value)
    assert not fits(hostile, given, hostile)


@pytest.mark.parametrize(
    "older",
    [
        {"definitions": {"Id": {"type": "integer"}}, "properties": {"a": {"$ref": "#/definitions/Id"}}},
        {
            "$id": "https://example.com/x",
            "properties": {"a": {"$ref": "#/$defs/I"}},
            "$defs": {"I": {"type": "integer"}},
        },
        {"properties": {"a": {"items": [{"type": "integer"}]}}},
    ],
)
def test_older_drafts(older: dict[str, Any]) -> None:  # rule 5
    older = {"$schema": DRAFT_7, "type": "object", **older}
    good, bad = ([1], ["x"]) if "items" in older["properties"]["a"] else (1, "x")
    assert first_fault(older, {"a": good}) is None
    assert "must be an integer, found 'x'" in str(first_fault(older, {"a": bad}))


def test_trees_work() -> None:  # rule 5
    node = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Node"}, "value": {"type": "integer"}}}
    tree = schema(root={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": node}}
    made = Tool(name="t", description="", parameters=tree, call=dict)
    assert made.arguments({"root": {"left": {"left": {"value": 1}}}})
    with pytest.raises(WrongArguments, match=r"`root\.left\.left\.value` must be an integer, found 'x'"):
        made.arguments({"root": {"left": {"left": {"value": "x"}}}})


def test_what_a_server_may_leave_out_is_not_checked() -> None:  # rule 3
    passed = schema(a={"type": "string", "format": "email"}) | {"unevaluatedProperties": False}
    assert first_fault(passed, {"a": "no address", "b": 1}) is None


def test_it_is_loaded_with_the_first_schema() -> None:  # rule 6
    code = "import sys, palaestra.commands.train; sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
