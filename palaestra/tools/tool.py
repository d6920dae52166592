"""Tools: typed, documented functions that an agent may call, and what is checked before a call.

Knows signatures, docstrings and JSON schemas. Knows nothing of how calls are written or of budgets.
"""

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
from palaestra.docstrings import read_docstring
from palaestra.errors import ContractError
from palaestra.tools.schema import UnusableSchema, check, first_fault, readable, resolved, shown, slim, types

Fault = Literal["unknown", "arguments", "raised", "timeout", "budget", "died"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class ToolError(Exception):
    """A tool raises it to tell the agent of a fault: the text is shown.

    Args:
        text: what the agent reads, such as "no order 17".
        fault: of which kind, where the tool knows better: "died" if what answers is gone, "timeout" if it hangs.
    """

    def __init__(self, text: str, *, fault: Literal["raised", "timeout", "died"] = "raised") -> None:
        self.text, self.fault = text, fault
        super().__init__(text)


class WrongArguments(Exception):
    """Arguments that do not fit a tool; the text says which one and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that an agent can call.

    Attributes:
        name: letters, digits and underscores, as of a Python function.
        description: what the agent reads.
        parameters: JSON schema of the object of arguments.
        call: sync or async, takes the arguments by keyword. What it returns is shown as text: JSON, where it is none.
        timeout_s: seconds until a call is given up; None: never.
        cost: what a call costs, in a unit of one's own.
        read: turns arguments into what `call` takes. None: they are compared with `parameters` and given as they are.

    Raises: ContractError, for a name that cannot be written in every format, or a schema that is not valid.
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
        if not NAME.fullmatch(self.name) or keyword.iskeyword(self.name):
            remedy = "Use letters, digits and underscores, at most 64, a letter first, and no word of Python."
            raise ContractError(where=where, what="this name cannot be called.", remedy=remedy)
        if self.timeout_s is not None and not self.timeout_s > 0:
            remedy = "Give seconds above 0, or None for no limit."
            raise ContractError(where=where, what=f"`timeout_s` is {self.timeout_s}.", remedy=remedy)
        if not self.cost >= 0:
            raise ContractError(where=where, what=f"`cost` is {self.cost}.", remedy="Give a number from 0 on.")
        try:
            check(self.parameters)
        except UnusableSchema as error:
            remedy = "Give a JSON schema of an object that refers only to its own `$defs`."
            raise ContractError(where=where, what=f"its schema cannot be used: {error}.", remedy=remedy) from error

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as `call` takes them. Raises: WrongArguments, naming the first that does not fit."""
        if self.read is not None:
            return self.read(given)
        fault = first_fault(self.parameters, given)
        if fault is not None:
            raise WrongArguments(fault)
        return dict(given)

    def sample(self) -> ToolCall:
        """A call with an example for each argument that must be given, for explanations."""
        given = self.parameters.get("properties", {})
        names = [name for name in given if name in self.parameters.get("required", ())]
        return ToolCall(name=self.name, arguments={name: _example(given[name]) for name in names})

    def signature(self) -> str:
        """`find(id: integer, limit: integer = 5)`."""
        required = self.parameters.get("required", ())
        written = []
        for name, schema in self.parameters.get("properties", {}).items():
            default = "" if name in required else f" = {schema['default']!r}" if "default" in schema else " = …"
            written.append(f"{name}: {_short(schema, self.parameters)}{default}")
        return f"{self.name}({', '.join(written)})"

    def manual(self) -> str:
        """The signature, what the tool does, and a line for each argument that has a description."""
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
    """Make a tool of a function: its schema from the signature, what it says of itself from the docstring.

        @tool
        def find(id: int, kind: Literal["order", "user"] = "order") -> str:
            '''Find something by its number.

            Args:
                id: the number, from 1.
                kind: what to find.
            '''

    Args:
        function: sync or async. A bound method is taken too.
        name: in place of the function's own.
        timeout_s, cost: as of Tool.

    Arguments are converted as pydantic does: "3" is a number where a number is expected.
    Raises: ContractError, for a parameter without a kind, `*args`, `**kwargs`, or a function without docstring.
    """
    if function is None:
        return lambda made: tool(made, name=name, timeout_s=timeout_s, cost=cost)
    name = str(name or getattr(function, "__name__", type(function).__name__))
    where = f"tool {name}"
    text = inspect.getdoc(function)
    if not text or not text.strip():
        remedy = "Say in its docstring what it does: agents read that."
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
        remedy = "Name only kinds that can be found in the function's own module."
        raise ContractError(where=where, what=f"its signature cannot be read: {error}.", remedy=remedy) from error
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            remedy = "Name each argument: calls give them by name."
            raise ContractError(where=where, what=f"it takes `{parameter}`.", remedy=remedy)
        if parameter.annotation is parameter.empty:
            remedy = f"Write its kind: `def {name}({parameter.name}: str)`."
            raise ContractError(where=where, what=f"`{parameter.name}` has no kind.", remedy=remedy)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (
            parameter.annotation,
            pydantic.Field(default, description=told.get(parameter.name), alias=parameter.name),
        )
    strangers = [named for named in told if named not in fields]
    if strangers:
        remedy = f"Its arguments are: {', '.join(fields) or 'none'}."
        raise ContractError(where=where, what=f"`Args:` tells of `{strangers[0]}`, no argument.", remedy=remedy)
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False, protected_namespaces=())
    plain = {f"argument_{number}": field for number, field in enumerate(fields.values())}  # any name is a good alias
    try:
        return pydantic.create_model(name, __config__=config, __module__=called.__module__, **plain)
    except pydantic.errors.PydanticSchemaGenerationError as error:
        what = f"a kind of its signature has no JSON form: {str(error).splitlines()[0]}"
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
    """A kind in a signature: `integer`, `'a' | 'b'`, `string | null`."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "any"
    schema = resolved(schema, root)
    if "enum" in schema:
        return " | ".join(repr(allowed) for allowed in schema["enum"][:20])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(_short(choice, root, depth + 1) for choice in choices))
    return " | ".join(types(schema)) or "any"


def _example(schema: Mapping[str, Any]) -> Any:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    kind = schema.get("type") or next((s.get("type") for s in schema.get("anyOf", ()) if s.get("type")), "string")
    return {"integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}.get(kind, "text")
