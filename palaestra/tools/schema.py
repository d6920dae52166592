"""JSON schemas of arguments: comparing values with them, and saying in words what they ask for.

Knows the keywords that tools use: types, enum, const, anyOf, objects, arrays, bounds and references. Other keywords
are passed over: whoever runs the tool checks them itself. Knows nothing of tools.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KINDS: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list | tuple,
    "object": Mapping,
}
WORDS = {"string": "a text", "integer": "an integer", "number": "a number", "boolean": "true or false"}
WORDS |= {"null": "null", "array": "a list", "object": "an object"}
DEEPEST = 32  # references may lead in circles


def faults(schema: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an object of arguments, one text for each fault."""
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in given:
            yield f"the argument `{name}` is missing: {readable(known.get(name, {}), schema)}"
    for name, value in given.items():
        if name in known:
            if not fits(known[name], value, schema):
                yield f"`{name}` must be {readable(known[name], schema)}, found {shown(value)}"
        elif schema.get("additionalProperties", not known) is False or known:
            yield f"there is no argument `{name}`; there are: {', '.join(known) or 'none'}"


def fits(schema: Any, value: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a value is what a schema asks for.

    Args:
        root: the whole schema, for references into its `$defs`.
    """
    if isinstance(schema, bool):
        return schema
    if depth > DEEPEST:
        return True
    schema = resolved(schema, root)
    if "const" in schema and not _same(schema["const"], value):
        return False
    if "enum" in schema and not any(_same(allowed, value) for allowed in schema["enum"]):
        return False
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and not any(fits(choice, value, root, depth + 1) for choice in choices):
        return False
    if not all(fits(each, value, root, depth + 1) for each in schema.get("allOf", ())):
        return False
    if schema.get("type") is not None and not any(is_kind(kind, value) for kind in types(schema)):
        return False
    return _in_bounds(schema, value) and _inside_fits(schema, value, root, depth)


def is_kind(kind: str, value: Any) -> bool:
    """Whether a value is of a JSON type. Whole floats are integers; true and false are no numbers."""
    if kind in ("integer", "number"):
        if isinstance(value, int):
            return not isinstance(value, bool)
        return isinstance(value, float) and math.isfinite(value) and (kind == "number" or value.is_integer())
    return isinstance(value, KINDS[kind]) if kind in KINDS else True


def types(schema: Mapping[str, Any]) -> Sequence[str]:
    """The JSON types that `type` names."""
    kind = schema.get("type")
    return (kind,) if isinstance(kind, str) else tuple(kind or ())


def kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """All JSON types that a value may have; empty: any."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return frozenset()
    schema = resolved(schema, root)
    if types(schema):
        return frozenset(types(schema))
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return frozenset(kind for choice in choices for kind in kinds(choice, root, depth + 1))


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind `$ref: "#/$defs/…"`; an unknown reference allows everything."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root
        for piece in reference.removeprefix("#/").split("/"):
            found = found.get(piece) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def readable(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """In words: "an integer from 1 to 9", "one of 'a', 'b'"."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "anything"
    schema = resolved(schema, root)
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        listed = [repr(allowed) for allowed in schema["enum"][:20]]
        return f"one of {', '.join(listed)}" if len(listed) > 1 else "".join(listed) or "nothing"
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(readable(choice, root, depth + 1) for choice in choices))
    words = " or ".join(WORDS.get(kind, kind) for kind in types(schema)) or "anything"
    if "array" in types(schema) and isinstance(schema.get("items"), Mapping):
        words += f" of which each is {readable(schema['items'], root, depth + 1)}"
    return words + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    said = [] if low is None else [f"from {low}"]
    said += [] if above is None else [f"above {above}"]
    said += [] if high is None else [f"to {high}" if low is not None else f"at most {high}"]
    said += [] if below is None else [f"below {below}"]
    for least, most, unit in (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "entries")):
        said += [f"of at least {schema[least]} {unit}"] if least in schema else []
        said += [f"of at most {schema[most]} {unit}"] if most in schema else []
    return "".join(f" {piece}" for piece in said)


def _in_bounds(schema: Mapping[str, Any], value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        checks = (
            ("minimum", lambda bound: value >= bound),
            ("maximum", lambda bound: value <= bound),
            ("exclusiveMinimum", lambda bound: value > bound),
            ("exclusiveMaximum", lambda bound: value < bound),
        )
        return all(check(schema[key]) for key, check in checks if isinstance(schema.get(key), int | float))
    sized = {str: ("minLength", "maxLength"), list: ("minItems", "maxItems")}
    least, most = sized.get(type(value), ("", ""))
    return not least or schema.get(least, 0) <= len(value) <= schema.get(most, math.inf)


def _inside_fits(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any], depth: int) -> bool:
    if isinstance(value, list | tuple) and "items" in schema:
        return all(fits(schema["items"], item, root, depth + 1) for item in value)
    if isinstance(value, Mapping):
        known = schema.get("properties", {})
        further = schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", ())) and all(
            fits(known.get(name, further), item, root, depth + 1) for name, item in value.items()
        )
    return True


def _same(expected: Any, value: Any) -> bool:
    return isinstance(expected, bool) == isinstance(value, bool) and expected == value


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    if not isinstance(value, str | int | float | None):
        return {list: "a list", tuple: "a list", dict: "an object"}.get(type(value), type(value).__name__)
    text = repr(value[:80]) if isinstance(value, str) else "a huge number" if _huge(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 1000  # Python refuses to write out very long ones


def slim(schema: Any) -> Any:
    """A schema without the titles that pydantic adds, so that it is short to read."""
    if isinstance(schema, list):
        return [slim(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        named = key in ("properties", "$defs") and isinstance(value, dict)
        if key in ("default", "const", "enum", "examples"):
            kept[key] = value
        else:
            kept[key] = {name: slim(inner) for name, inner in value.items()} if named else slim(value)
    return kept
