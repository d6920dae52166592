"""JSON schemas of tools' arguments: what is wrong with given arguments, and what a schema asks for, in words.

The package `jsonschema` compares arguments with schemas. A schema may come from a server that somebody else runs, so
it is checked before it is used: its size and depth are limited, and it refers to nothing outside of itself. A
comparison is given up where it takes too many steps or where a pattern takes too long.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import regex
from referencing import Registry
from referencing.exceptions import Unresolvable

if TYPE_CHECKING:
    from jsonschema import ValidationError

WORDS = {"string": "a text", "integer": "an integer", "number": "a number", "boolean": "true or false"}
WORDS |= {"null": "null", "array": "a list", "object": "an object"}
DRAFTS = ("Draft6Validator", "Draft7Validator", "Draft201909Validator", "Draft202012Validator")  # the last one is usual
IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")  # schemas of the same value
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # keywords with schemas by name
PASSED_OVER = ("format", "unevaluatedProperties", "unevaluatedItems")  # whoever runs the tool checks them

MOST_CHARS = 100_000  # of a schema, written as JSON
DEEPEST = 32  # lists and objects in each other, of a schema and of arguments
LONGEST_PATTERN = 1_000  # characters of a regular expression
MOST_STEPS = 50_000  # keywords that one comparison looks at
PATTERNS_S = 0.25  # processor seconds for all patterns of one comparison
MOST_ERRORS = 100  # of which one is told


class UnusableSchema(ValueError):
    """A schema that is wrong or beyond the limits; the text says why."""


class _TooMuch(Exception):
    """A comparison that takes too many steps or too long."""


BEYOND = (_TooMuch, RecursionError, Unresolvable, regex.error)  # ends a comparison, whatever the schema holds


# ---- comparing --------------------------------------------------------------------------------------------
def check(schema: Mapping[str, Any]) -> None:
    """Raises: UnusableSchema, for a schema that is not valid, too large or too deep, or refers to something outside."""
    _validator(_written(schema))


def first_fault(schema: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What is wrong with an object of arguments, as one line: which argument, what was found, what is allowed.

    Arguments that the schema does not list are wrong, unless it says that further ones are allowed.

    Raises: UnusableSchema.
    """
    validator = _validator(_written(schema))
    try:
        errors = _errors(validator.evolve(schema=_closed(validator.schema)), _plain(given))
    except BEYOND:
        return "the arguments cannot be compared with the tool's schema: it takes too long, or they are too deep"
    first = min(errors, key=lambda error: len(error.absolute_path), default=None)
    return None if first is None else _said(_innermost(first), validator.schema)


def fits(schema: Any, value: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value is what a schema asks for.

    Args:
        root: the whole schema, for references into its `$defs`.
    """
    try:
        return not _errors(_validator(_written(root)).evolve(schema=_without_addresses(schema)), _plain(value))
    except BEYOND:
        return False


def _errors(validator: Any, value: Any) -> list[ValidationError]:
    token = _EFFORT.set(_Effort())
    try:
        return list(itertools.islice(validator.iter_errors(value), MOST_ERRORS))
    finally:
        _EFFORT.reset(token)


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, in which arguments that are not listed are wrong where nothing says otherwise."""
    says = {"additionalProperties", "patternProperties", *PASSED_OVER, *IN_PLACE, *REFERENCES} & schema.keys()
    return schema if says or not schema.get("properties") else {**schema, "additionalProperties": False}


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy of JSON values only. Integers that Python refuses to write out become smaller ones.

    Raises: _TooMuch, for lists and objects that stand too deep in each other.
    """
    if depth > DEEPEST:
        raise _TooMuch
    if isinstance(value, Mapping):
        return {name: _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    return value if not _huge(value) else 2**1000 if value > 0 else -(2**1000)


# ---- messages ---------------------------------------------------------------------------------------------
def _innermost(error: ValidationError) -> ValidationError:
    """The fault inside of the alternative that fits a list or an object best; other faults as they are."""
    while error.context and isinstance(error.instance, list | dict):
        branches: dict[Any, list[ValidationError]] = {}
        for inner in error.context:
            branches.setdefault(inner.schema_path[0], []).append(inner)
        close = [found for found in branches.values() if all(e.relative_path or e.validator != "type" for e in found)]
        if not close:
            return error
        error = min(close, key=len)[0]
    return error


def _said(error: ValidationError, root: Mapping[str, Any]) -> str:
    """A fault as one line."""
    place, schema = _place(error.absolute_path), error.schema if isinstance(error.schema, Mapping) else {}
    known, inside = schema.get("properties", {}), f"{place}." if place else ""
    if error.validator == "required":
        name = next(name for name in error.validator_value if name not in error.instance)
        return f"the argument `{inside}{name}` is missing: {readable(known.get(name, {}), root)}"
    if error.validator == "additionalProperties":
        name = next((name for name in error.instance if name not in known), "")
        return f"there is no argument `{inside}{name[:64]}`; there are: {', '.join(known) or 'none'}"
    too_many = error.validator == "oneOf" and not error.context
    if error.validator in SAID and place and not too_many:
        return f"`{place}` must be {readable(schema, root)}, found {shown(error.instance)}"
    message = error.message if len(error.message) <= 200 else f"{error.message[:200]}…"
    return f"`{place}` does not fit: {message}" if place else f"the arguments do not fit: {message}"


def _place(path: Iterable[str | int]) -> str:
    """`place.zip`, `sizes[0]`."""
    pieces = (f"[{piece}]" if isinstance(piece, int) else f".{piece[:64]}" for piece in path)
    return "".join(pieces).removeprefix(".")


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    if not isinstance(value, str | int | float | None):
        named: dict[type, str] = {list: "a list", tuple: "a list", dict: "an object"}
        return named.get(type(value), type(value).__name__)
    text = repr(value[:80]) if isinstance(value, str) else "a huge number" if _huge(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _huge(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() > 1000  # Python refuses to write out very long ones


# ---- schemas in words -------------------------------------------------------------------------------------
SAID = {"type", "const", "enum", "anyOf", "oneOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
SAID |= {"minLength", "maxLength", "minItems", "maxItems", "pattern", "multipleOf", "uniqueItems"}


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
    said += [f"that is a multiple of {schema['multipleOf']}"] if "multipleOf" in schema else []
    said += ["of different entries"] if schema.get("uniqueItems") else []
    said += [f"that matches the pattern {schema['pattern'][:80]}"] if "pattern" in schema else []
    return "".join(f" {piece}" for piece in said)


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
    """The schema behind `$ref: "#/$defs/…"`; what cannot be found allows everything."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found = _pointed_at(reference, root)
        if not isinstance(found, Mapping):
            return {}
        schema = found
    return {}


def _pointed_at(reference: str, root: Any) -> Any:
    """What a reference such as `#/$defs/Place` stands for; None, if there is no such place in the schema."""
    place, _, pointer = reference.partition("#")
    found = None if place else root
    for piece in pointer.removeprefix("/").split("/") if pointer else ():
        name = unquote(piece).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in the form that chat templates read: no references, and `nullable` in place of a choice with null.

    Templates read the key `type` of each argument. Where a schema refers to itself, `{}` stands for it.

    >>> inlined({"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}}})
    {'properties': {'n': {'default': None, 'type': 'integer', 'nullable': True}}}
    """
    made = _inlined(schema, schema, frozenset())
    return {name: value for name, value in made.items() if name not in ("$defs", "definitions")}


def _inlined(value: Any, root: Mapping[str, Any], within: frozenset[str]) -> Any:
    """`within`: the references that lead here."""
    if isinstance(value, list | tuple):
        return [_inlined(inner, root, within) for inner in value]
    if not isinstance(value, Mapping):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str):
        if reference in within:
            return {}
        within |= {reference}
        value = {**resolved(value, root), **{key: inner for key, inner in value.items() if key != "$ref"}}
    choices = value.get("anyOf")
    if isinstance(choices, list) and len(choices) == 2 and {"type": "null"} in choices:
        kept: Mapping[str, Any] = next((one for one in choices if one != {"type": "null"}), {})
        others = {key: inner for key, inner in value.items() if key != "anyOf"}
        return _inlined({**others, **kept, "nullable": True}, root, within)
    return {
        key: inner if key in DATA or key in ("$defs", "definitions") else _inlined(inner, root, within)
        for key, inner in value.items()
    }


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
        if key in DATA:
            kept[key] = value
        else:
            kept[key] = {name: slim(inner) for name, inner in value.items()} if named else slim(value)
    return kept


# ---- schemas of strangers ---------------------------------------------------------------------------------
def _written(schema: Mapping[str, Any]) -> str:
    """The schema as JSON: equal schemas are checked once."""
    try:
        return json.dumps(schema, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableSchema(f"it cannot be written as JSON ({error})") from error


@functools.cache
def _jsonschema() -> Any:
    """The package, loaded with the first schema, since most commands read none.

    It takes seconds where packages are installed that check its formats. Jupyter brings them.
    """
    return import_module("jsonschema")


@functools.lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """What compares values with a schema. Raises: UnusableSchema."""
    if len(text) > MOST_CHARS:
        raise UnusableSchema(f"it has {len(text):,} characters, and {MOST_CHARS:,} are the most")
    try:
        schema = json.loads(text)
        drafts = [getattr(_jsonschema(), name) for name in DRAFTS]
        draft = next((d for d in drafts if d.META_SCHEMA["$schema"] == schema.get("$schema")), drafts[-1])
        schema = _without_addresses(schema)
        draft.check_schema(schema, format_checker=None)
        _refuse_strange(schema)
    except _jsonschema().SchemaError as error:
        place = "/".join(map(str, error.absolute_path)) or "its top"
        raise UnusableSchema(f"at {place}, {error.message[:200]}") from error
    except RecursionError as error:
        raise UnusableSchema("it is too deep") from error
    return _careful(draft)(schema, registry=Registry())


def _without_addresses(schema: Any, depth: int = 0) -> Any:
    """The schema without `$schema` and `$id`, which would change what its references mean, and who reads them."""
    if depth > DEEPEST:
        raise UnusableSchema(f"its lists and objects stand more than {DEEPEST} deep in each other")
    if isinstance(schema, list):
        return [_without_addresses(inner, depth + 1) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_addresses(value, depth + 1)
        for key, value in schema.items()
        if not (key in ("$schema", "$id") and isinstance(value, str))
    }


def _refuse_strange(root: dict[str, Any]) -> None:
    """Raises: UnusableSchema, for references that lead outside, nowhere or in a circle, and for senseless patterns."""
    done: dict[int, bool] = {}

    def follow(schema: Any) -> None:
        """Visit the schemas that are compared with the same value as this one."""
        if not isinstance(schema, dict) or done.get(id(schema)):
            return
        if id(schema) in done:
            raise UnusableSchema("its references lead in a circle")
        done[id(schema)] = False
        for keyword in REFERENCES:
            if isinstance(schema.get(keyword), str):
                follow(_target(schema[keyword], root))
        for keyword in IN_PLACE:
            for inner in _listed(schema.get(keyword), by_name=keyword == "dependentSchemas"):
                follow(inner)
        done[id(schema)] = True

    for schema in _objects(root):
        follow(schema)
        _check_patterns(schema)


def _listed(value: Any, *, by_name: bool) -> list[Any]:
    """The schemas that a keyword holds: one, several, or several by name."""
    return [*value.values()] if by_name and isinstance(value, dict) else value if isinstance(value, list) else [value]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a schema that may be schemas themselves."""
    if isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key in NAMED and isinstance(inner, dict):
                yield from _objects([*inner.values()])
            elif key not in DATA:
                yield from _objects(inner)


def _target(reference: str, root: dict[str, Any]) -> Any:
    target = _pointed_at(reference, root)
    if not isinstance(target, dict | bool):
        far = "outside of itself" if not reference.startswith("#") else "but has no such place"
        raise UnusableSchema(f"it refers to `{reference[:100]}`, {far}")
    return target


def _check_patterns(schema: dict[str, Any]) -> None:
    pattern, by_pattern = schema.get("pattern"), schema.get("patternProperties")
    patterns = [pattern] if isinstance(pattern, str) else []
    for each in [*patterns, *(by_pattern if isinstance(by_pattern, dict) else ())]:
        if len(each) > LONGEST_PATTERN:
            raise UnusableSchema(f"a pattern has {len(each):,} characters, and {LONGEST_PATTERN:,} are the most")
        try:
            regex.compile(each)
        except (regex.error, OverflowError, ValueError) as error:
            raise UnusableSchema(f"its pattern {each[:100]!r} cannot be read ({error})") from error


# ---- limits of a comparison -------------------------------------------------------------------------------
class _Effort:
    """What a comparison has taken so far."""

    def __init__(self) -> None:
        self.steps, self.began = 0, time.process_time()

    def step(self) -> None:
        """Count a keyword. Raises: _TooMuch."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _TooMuch

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a text holds the pattern. Raises: _TooMuch, where that takes too long."""
        left = PATTERNS_S - (time.process_time() - self.began)
        if left <= 0:
            raise _TooMuch
        try:
            return regex.search(pattern, text, timeout=left) is not None
        except TimeoutError:
            raise _TooMuch from None


_EFFORT: ContextVar[_Effort] = ContextVar("effort")


@functools.cache
def _careful(draft: Any) -> Any:
    """A draft of JSON schema whose comparisons are limited, and which passes over what it cannot limit."""
    keywords: dict[str, Any] = dict(draft.VALIDATORS)
    keywords |= {"pattern": _pattern, "patternProperties": _pattern_properties}
    keywords["additionalProperties"] = functools.partial(_further, keywords["additionalProperties"])
    keywords |= dict.fromkeys(PASSED_OVER, _pass_over)
    checker = draft.TYPE_CHECKER.redefine("number", _is_number)
    return _jsonschema().validators.extend(
        draft, {name: _counted(keyword) for name, keyword in keywords.items()}, type_checker=checker
    )


def _counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _EFFORT.get().step()
        return keyword(validator, value, instance, schema)

    return counting


def _pass_over(validator: Any, value: Any, instance: Any, schema: Any) -> tuple[()]:
    return ()


def _is_number(_: Any, value: Any) -> bool:
    """JSON has no infinite numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _EFFORT.get().matches(pattern, instance):
        yield _jsonschema().ValidationError("it does not match the pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if _EFFORT.get().matches(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _further(standard: Any, validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`additionalProperties`, beside names that a pattern allows."""
    patterns = schema.get("patternProperties", {})
    if patterns and validator.is_type(instance, "object"):
        matches = _EFFORT.get().matches
        instance = {name: value for name, value in instance.items() if not any(matches(p, name) for p in patterns)}
        schema = {key: value for key, value in schema.items() if key != "patternProperties"}
    for error in standard(validator, allowed, instance, schema):
        if not error.path:
            error.instance = instance  # without the names that a pattern allows
        yield error
