"""Turn typed, documented functions into tools that an agent may call, and check the arguments of each call."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, overload

import pydantic

from palaestra.data import ToolCall
from palaestra.errors import ContractError
from palaestra.registry.docstrings import read_docstring
from palaestra.tools.schema import UnusableSchema, check, first_fault, inlined, readable, resolved, shown, slim, types

Fault = Literal["unknown", "arguments", "raised", "timeout", "budget", "died"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
LONGEST = 64  # characters of a name
NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{LONGEST - 1}}}")  # chat services take no other characters


def usable_name(name: str) -> str:
    """A name that chat services and all call formats can write, for a tool of a server.

    >>> usable_name("get-weather"), usable_name("files.read"), usable_name("3d"), usable_name("import")
    ('get-weather', 'files_read', 'tool_3d', 'tool_import')
    """
    plain = re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:LONGEST]
    return plain if _is_usable(plain) else f"tool_{plain}"[:LONGEST]


def refuse_clash(names: Mapping[str, str], *, where: str, remedy: str) -> None:
    """Refuse tools of a server that agents would call by one name, since only one of them could be called.

    Args:
        names: the server's name of each tool -> the name for agents. where, remedy: texts of the error.

    Raises: ContractError.
    """
    first: dict[str, str] = {}
    for called, name in names.items():
        other = first.setdefault(name, called)
        if other != called:
            what = f"agents would call its tools `{other[:200]}` and `{called[:200]}` by the same name, `{name}`."
            raise ContractError(where=where, what=what, remedy=remedy)


def _is_usable(name: str) -> bool:
    return NAME.fullmatch(name) is not None and not keyword.iskeyword(name)


class ToolError(Exception):
    """A tool raises this to report a fault to the agent.

    Args:
        text: what the agent reads, such as "no order 17".
        fault: kind of the fault. "died": the service behind the tool has ended. "timeout": it does not answer.
            "raised": anything else.
    """

    def __init__(self, text: str, *, fault: Literal["raised", "timeout", "died"] = "raised") -> None:
        self.text, self.fault = text, fault
        super().__init__(text)


class WrongArguments(Exception):
    """The arguments of a call do not fit the tool. The text says which one is wrong and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that an agent can call.

    Attributes:
        name: at most 64 letters, digits, underscores and hyphens. It begins with a letter or an underscore and is no
            keyword of Python.
        description: what the agent reads about the tool.
        parameters: JSON schema of the arguments, which are one object.
        call: sync or async function that takes the arguments by keyword. The agent reads its result as text; a result
            that is not a text is written as JSON.
        timeout_s: seconds after which a call is given up. None: never.
        cost: cost of one call, in any unit.
        read: converts the arguments of a call to those that `call` takes. None: the arguments are checked against
            `parameters` and passed on unchanged.

    Raises: ContractError, for a name that some call format cannot write, a bad `timeout_s` or `cost`, or a schema that
        cannot be used.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[..., Any]
    timeout_s: float | None = 10.0
    cost: float = 0.0
    read: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        where = f"tool {self.name!r}"
        if not _is_usable(self.name):
            remedy = (
                f"Use at most {LONGEST} letters, digits, underscores and hyphens, a letter or an underscore first, "
                "and no keyword of Python."
            )
            raise ContractError(where=where, what="a tool cannot have this name.", remedy=remedy)
        if self.timeout_s is not None and not self.timeout_s > 0:
            remedy = "Set it to a number of seconds above 0, or to None for no limit."
            raise ContractError(where=where, what=f"`timeout_s` is {self.timeout_s}.", remedy=remedy)
        if not self.cost >= 0:
            raise ContractError(where=where, what=f"`cost` is {self.cost}.", remedy="Set it to 0 or more.")
        try:
            check(self.parameters)
        except UnusableSchema as error:
            remedy = "Give a JSON schema of an object that refers only to its own `$defs`."
            raise ContractError(where=where, what=f"its schema cannot be used: {error}.", remedy=remedy) from error

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as `call` takes them. Raises: WrongArguments, naming the first argument that does not fit."""
        if self.read is not None:
            return self.read(given)
        fault = first_fault(self.parameters, given)
        if fault is not None:
            raise WrongArguments(fault)
        return dict(given)

    def sample(self) -> ToolCall:
        """A call with an example value for each required argument, for the explanation that agents read."""
        given = self.parameters.get("properties", {})
        names = [name for name in given if name in self.parameters.get("required", ())]
        return ToolCall(name=self.name, arguments={name: example_of(given[name]) for name in names})

    def declaration(self) -> dict[str, Any]:
        """The tool as chat templates and chat services declare it: `{"type": "function", "function": {…}}`."""
        schema = inlined(self.parameters)
        parameters = {"type": "object", **schema, "properties": schema.get("properties", {})}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def signature(self) -> str:
        """The name with its arguments, such as `find(id: integer, limit: integer = 5)`."""
        required = self.parameters.get("required", ())
        written = []
        for name, schema in self.parameters.get("properties", {}).items():
            default = "" if name in required else f" = {schema['default']!r}" if "default" in schema else " = …"
            written.append(f"{name}: {_short(schema, self.parameters)}{default}")
        return f"{self.name}({', '.join(written)})"

    def manual(self) -> str:
        """The signature, the description, and one line for each argument that has a description."""
        lines = [f"{self.signature()}: {self.description}" if self.description else self.signature()]
        for name, schema in self.parameters.get("properties", {}).items():
            if schema.get("description"):
                lines.append(f"    {name}: {schema['description']}")
        return "\n".join(lines)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(*, name: str | None = ..., timeout_s: float | None = ..., cost: float = ...) -> Callable[..., Tool]: ...
@overload
def tool(
    function: Callable[..., Any], /, *, name: str | None = ..., timeout_s: float | None = ..., cost: float = ...
) -> Tool: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float | None = 10.0,
    cost: float = 0.0,
) -> Any:
    """Make a tool from a function. The signature gives the schema, the docstring gives the descriptions.

        @tool
        def find(id: int, kind: Literal["order", "user"] = "order") -> str:
            '''Find something by its number.

            Args:
                id: the number, from 1.
                kind: what to find.
            '''

    Args:
        function: sync or async. A bound method works too.
        name: name of the tool. None: the function's own name.
        timeout_s, cost: as in Tool.

    pydantic converts the arguments: "3" becomes a number where a number is expected.
    Raises: ContractError, for a parameter without a type annotation, for a parameter that a call cannot give by name
        (`*args`, `**kwargs`), or for a function without a docstring.
    """
    if function is None:
        return lambda made: tool(made, name=name, timeout_s=timeout_s, cost=cost)
    name = str(name or getattr(function, "__name__", type(function).__name__))
    where = f"tool {name}"
    text = inspect.getdoc(function)
    if not text or not text.strip():
        remedy = "Write a docstring that says what the tool does. Agents read it."
        raise ContractError(where=where, what="the function has no docstring.", remedy=remedy)
    try:
        told = read_docstring(text)
    except ValueError as error:
        remedy = "Write each argument as `name: what it is`, its further lines indented."
        raise ContractError(where=where, what=f"{error}.", remedy=remedy) from error
    model = _model(function, name, told.arguments, where)
    return Tool(
        name=name,
        description=" ".join(f"{told.summary} {told.body}".split()),
        parameters=slim(model.model_json_schema()),
        call=function,
        timeout_s=timeout_s,
        cost=cost,
        read=lambda given: _validated(model, given),
    )


# ---- signatures -------------------------------------------------------------------------------------------
def _model(function: Callable[..., Any], name: str, told: Mapping[str, str], where: str) -> type[pydantic.BaseModel]:
    itself = inspect.isroutine(function) or isinstance(function, functools.partial)
    called = function if itself else type(function).__call__
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError, SyntaxError) as error:
        remedy = "Use only types that the function's own module defines or imports."
        raise ContractError(where=where, what=f"its signature cannot be read: {error}.", remedy=remedy) from error
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            remedy = "Declare each argument by its name, because calls give arguments by name."
            raise ContractError(where=where, what=f"it takes `{parameter}`.", remedy=remedy)
        if parameter.annotation is parameter.empty:
            remedy = f"Write its type, such as `def {name}({parameter.name}: str)`."
            raise ContractError(where=where, what=f"`{parameter.name}` has no type annotation.", remedy=remedy)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (
            parameter.annotation,
            pydantic.Field(default, description=told.get(parameter.name), alias=parameter.name),
        )
    strangers = [named for named in told if named not in fields]
    if strangers:
        remedy = f"Its arguments are: {', '.join(fields) or 'none'}."
        what = f"`Args:` describes `{strangers[0]}`, which is not an argument."
        raise ContractError(where=where, what=what, remedy=remedy)
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False, protected_namespaces=())
    # pydantic refuses some names of fields, but takes any name as an alias.
    plain = {f"argument_{number}": field for number, field in enumerate(fields.values())}
    try:
        return pydantic.create_model(name, __config__=config, __module__=called.__module__, **plain)
    except pydantic.errors.PydanticSchemaGenerationError as error:
        what = f"a type in its signature has no JSON schema: {str(error).splitlines()[0]}"
        remedy = "Use str, int, float, bool, Literal, lists, dicts, None, or pydantic models of these."
        raise ContractError(where=where, what=what, remedy=remedy) from error


def _validated(model: type[pydantic.BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        checked = model.model_validate(dict(given))
    except pydantic.ValidationError as error:
        raise WrongArguments(_first(error, model)) from None
    return {field.alias or name: getattr(checked, name) for name, field in type(checked).model_fields.items()}


def _first(error: pydantic.ValidationError, model: type[pydantic.BaseModel]) -> str:
    fault = error.errors(include_url=False, include_context=False)[0]
    schema = model.model_json_schema()
    place = [str(piece) for piece in fault["loc"]]
    names = list(schema.get("properties", {}))
    if fault["type"] == "extra_forbidden" and len(place) == 1:
        return f"there is no argument `{place[0]}`; there are: {', '.join(names) or 'none'}"
    expected = readable(schema["properties"][place[0]], schema) if place[0] in names else "something else"
    if fault["type"] == "missing" and len(place) == 1:
        return f"the argument `{place[0]}` is missing: {expected}"
    inside = "" if len(place) == 1 else f" ({'.'.join(place[1:])}: {fault['msg'].lower()})"
    return f"`{place[0]}` must be {expected}{inside}, found {shown(fault['input'])}"


# ---- words ------------------------------------------------------------------------------------------------
def _short(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """A schema as a type in a signature: `integer`, `'a' | 'b'`, `string | null`."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "any"
    schema = resolved(schema, root)
    if "enum" in schema:
        return " | ".join(repr(allowed) for allowed in schema["enum"][:20])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(_short(choice, root, depth + 1) for choice in choices))
    return " | ".join(types(schema)) or "any"


def example_of(schema: Mapping[str, Any]) -> Any:
    """An example of a value that a schema allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    kind = schema.get("type") or next((s.get("type") for s in schema.get("anyOf", ()) if s.get("type")), "string")
    return {"integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}.get(kind, "text")
