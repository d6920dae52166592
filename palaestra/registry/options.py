"""Options of parts: common types, groups of options, and the schema that is made from a signature.

The keyword-only parameters of a part are its options. A recipe gives them by name, and so does a direct call.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import json
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_core import PydanticCustomError, core_schema

from palaestra.errors import ContractError, RecipeError, nearest, shortened

OPEN: weakref.WeakSet[Any] = weakref.WeakSet()  # functions whose options are not known, so that any may be given

# ---- kinds ------------------------------------------------------------------------------------------------
Discount = Annotated[float, pydantic.Field(gt=0, le=1)]
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]
NonNegative = Annotated[float, pydantic.Field(ge=0)]
Positive = Annotated[float, pydantic.Field(gt=0)]


@dataclass(frozen=True, slots=True)
class AtMost:
    """Marks a number that may not be larger, since no machine could serve it: `Annotated[int, AtMost(1000)]`."""

    limit: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if value > self.limit:
            raise PydanticCustomError("at_most", "the largest value is {limit}", {"limit": f"{self.limit:,}"})
        return value


PositiveInt = Annotated[int, pydantic.Field(gt=0), AtMost(2**31 - 1)]
Count = Annotated[PositiveInt, AtMost(1_000_000)]  # of tasks, episodes and the like, which are all held in memory
Columns = tuple[str, ...]
Unit = str  # "trajectory", "row", "token" or the name of a column
Scale = Literal["none", "std"]
Singleton = Literal["zero", "raw", "error"]
ZeroVariance = Literal["zero", "keep"]
Degrees = Annotated[int, pydantic.Field(ge=0, le=1)]
Aggregation = Literal[  # how the losses of tokens become one number (`palaestra.algebra.coefficients`)
    "token-mean",
    "sequence-mean",
    "sequence-sum",
    "sequence-sum-norm",
    "constant-length",
    "step-mean",
    "trajectory-step-mean",
    "group-mean",
    "agent-mean",
]


@dataclass(frozen=True, slots=True)
class Files:
    """Marks an option whose texts name files: `Annotated[str, Files()]`.

    A recipe looks for a relative path in its own folder first, then in the working folder. The part gets the path of
    the file that was found. Other texts stay as they are.

    Args:
        functions: True: only texts such as `rewards.py:correct`, a function of a file, name files.
    """

    functions: bool = False


File = Annotated[str, Files()]


class Section(pydantic.BaseModel):
    """A section of a recipe. It refuses unknown keys.

    Attributes:
        IGNORES_IF: condition → keys without effect, as `ignores_if` of `palaestra.registry.register`.
    """

    IGNORES_IF: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


# ---- groups -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """A group of options that many parts share. A part takes it as one keyword-only parameter with a default:

        def grpo(table: StepTable, *, scale: Scale = "std", peers: Peers = Peers()) -> …

    A subclass is a frozen, keyword-only dataclass whose fields have defaults. The schema of the part lists these fields
    beside the part's own options: `advantage: {grpo: {scale: none, by: [group]}}`. Their defaults are the values in the
    parameter's default. A direct call gives the group (`peers=Peers(by=("group",))`) or fields (`by=("group",)`).

    Args:
        fixed: fields that the part does not offer as options. They keep their values.
    """

    fixed: tuple[str, ...] = ()

    def offered(self) -> list[str]:
        """The fields that the part offers as options."""
        return [name for name in _fields(type(self)) if name not in self.fixed]


def groups_of(target: Callable[..., Any]) -> dict[str, OptionGroup]:
    """The keyword-only parameters whose default is a group: name → default."""
    return {
        p.name: p.default
        for p in parameters(target)
        if p.kind is inspect.Parameter.KEYWORD_ONLY and isinstance(p.default, OptionGroup)
    }


def take_apart(
    groups: Mapping[str, OptionGroup], options: Mapping[str, Any], *, where: str, owner: str
) -> dict[str, Any]:
    """Replace each given group in `options` by its fields.

    Raises: RecipeError, if the value of a group has another type, if a field is given twice, or if a fixed field has
        another value.
    """
    flat = {name: value for name, value in options.items() if name not in groups}
    for name in groups.keys() & options.keys():
        default, given = groups[name], options[name]
        kind = type(default)
        if not isinstance(given, kind):
            raise RecipeError(
                where=where,
                what=f"{owner} cannot take `{name}: {given!r}`: it is not of type {kind.__name__}.",
                remedy=f"Give `{name}={kind.__name__}(…)`, or these options by name: {', '.join(default.offered())}.",
            )
        twice = [field for field in default.offered() if field in options]
        if twice:
            raise RecipeError(
                where=where,
                what=f"{owner} got both `{name}` and `{twice[0]}`, which is an option of `{name}`.",
                remedy=f"Give only `{name}={kind.__name__}({twice[0]}=…)`.",
            )
        usual = kind()
        for field in _fields(kind):
            value = getattr(given, field)
            if field not in default.fixed:
                flat[field] = value
            elif value not in (getattr(usual, field), getattr(default, field)):
                raise RecipeError(
                    where=where,
                    what=f"{owner} has no option `{field}`.",
                    remedy=f"Leave `{field}` out of `{name}`. These may be set: {', '.join(default.offered())}.",
                )
    return flat


def put_together(groups: Mapping[str, OptionGroup], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the fields of each group in `flat` by the group. Fields that are not given keep their defaults."""
    options = dict(flat)
    for name, default in groups.items():
        given = {field: options.pop(field) for field in default.offered() if field in options}
        if given:
            options[name] = dataclasses.replace(default, **given)
    return options


def taking_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes the fields of the groups by name, as a recipe gives them. It checks nothing."""
    groups = groups_of(function)
    if not groups:
        return function

    @functools.wraps(function)
    def call(*data: Any, **flat: Any) -> Any:
        return function(*data, **put_together(groups, flat))

    return show_fields(call, groups)


def show_fields(call: Callable[..., Any], groups: Mapping[str, OptionGroup]) -> Callable[..., Any]:
    """Add the fields of the groups to the signature of `call`, which `help` shows. Returns `call`."""
    if groups:
        fields = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(group, field.name),
                annotation=field.type,
            )
            for group in groups.values()
            for field in dataclasses.fields(group)
            if field.name in group.offered()
        ]
        signature = inspect.signature(call)
        shown = signature.replace(parameters=[*signature.parameters.values(), *fields])
        call.__signature__ = shown  # type: ignore[attr-defined]
    return call


def _fields(group: type[OptionGroup]) -> list[str]:
    return [field.name for field in dataclasses.fields(group) if field.name != "fixed"]


# ---- schemas ----------------------------------------------------------------------------------------------
def parameters(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, or of a class's constructor without `self`."""
    function = target.__init__ if inspect.isclass(target) else target
    found = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    return found[1:] if inspect.isclass(target) else found


def parameters_of_call(cls: Any) -> list[inspect.Parameter]:
    """The parameters of `cls.__call__` without `self`."""
    return list(inspect.signature(cls.__call__).parameters.values())[1:]


@functools.cache
def schema(target: Callable[..., Any], title: str, first: tuple[str, ...] = ()) -> type[pydantic.BaseModel]:
    """The options of a function or class as a pydantic model. The fields of groups are options too.

    Args:
        title: name of the model, which errors show.
        first: options that come first; the others follow as in the signature.

    Raises: ContractError, if an annotation cannot be found, a group has no default, or two options have one name.
    """
    try:
        options = [p for p in parameters(target) if p.kind is inspect.Parameter.KEYWORD_ONLY]
        made = inspect.unwrap(target.__init__ if inspect.isclass(target) else target)
        hints = _hints(made, [p.name for p in options])
    except Exception as error:  # evaluating an annotation can raise anything
        raise ContractError(
            where=title,
            what=f"its options cannot be read from its signature: {type(error).__name__}: {error}.",
            remedy="Annotate keyword-only parameters with types that the module of the part defines or imports.",
        ) from error
    if inspect.isclass(target) and groups_of(target) and "part" not in vars(target):
        raise ContractError(
            where=title,
            what=f"`{target.__name__}` takes a group of options but is not registered.",
            remedy="Write `@register(slot, name)` above the class.",
        )
    fields: dict[str, Any] = {}
    for p in options:
        kind, default = hints.get(p.name, Any), ... if p.default is inspect.Parameter.empty else p.default
        own = _fields_of_group(default) if isinstance(default, OptionGroup) else {p.name: (kind, default)}
        _refuse_bare_group(kind, default, name=p.name, title=title)
        for name in own.keys() & fields.keys():
            raise ContractError(where=title, what=f"two options are called `{name}`.", remedy="Rename one of them.")
        fields |= own
    unknown = [name for name in first if name not in fields]
    if unknown:
        raise ContractError(where=title, what=f"`first` names `{unknown[0]}`, which is not one of its options.")
    fields = {name: fields[name] for name in (*first, *(name for name in fields if name not in first))}
    extra: Any = "allow" if target in OPEN else "forbid"
    config = pydantic.ConfigDict(extra=extra, arbitrary_types_allowed=True, protected_namespaces=())
    return pydantic.create_model(title, __config__=config, **fields)


def _fields_of_group(default: OptionGroup) -> dict[str, Any]:
    """The fields that are options: name → type and default."""
    hints = typing.get_type_hints(type(default), include_extras=True)
    return {name: (hints[name], getattr(default, name)) for name in default.offered()}


def _refuse_bare_group(kind: Any, default: Any, *, name: str, title: str) -> None:
    if inspect.isclass(kind) and issubclass(kind, OptionGroup) and not isinstance(default, kind):
        raise ContractError(
            where=title,
            what=f"the group of options `{name}` has no default, so its options have none.",
            remedy=f"Write `{name}: {kind.__name__} = {kind.__name__}()`.",
        )


def _hints(function: Callable[..., Any], wanted: list[str]) -> dict[str, Any]:
    """The resolved annotations of these parameters. Others may name types that only a type checker imports."""

    def bare() -> None: ...

    written = getattr(function, "__annotations__", {})
    bare.__annotations__ = {name: hint for name, hint in written.items() if name in wanted}
    return typing.get_type_hints(bare, globalns=getattr(function, "__globals__", {}), include_extras=True)


def check_options(
    model: type[pydantic.BaseModel], options: Mapping[str, Any], *, where: str, owner: str
) -> dict[str, Any]:
    """Validate `options` by `model`. Returns all options, with defaults filled in.

    Raises: RecipeError, for an unknown option or a value of the wrong type.
    """
    try:
        checked = model.model_validate(dict(options))
    except pydantic.ValidationError as error:
        raise _readable(error, model, where=where, owner=owner) from None
    return {name: getattr(checked, name) for name in model.model_fields} | (checked.model_extra or {})


def _readable(
    error: pydantic.ValidationError, model: type[pydantic.BaseModel], *, where: str, owner: str
) -> RecipeError:
    first = error.errors()[0]
    key = ".".join(str(piece) for piece in first["loc"])
    names = list(model.model_fields)
    if first["type"] == "extra_forbidden":
        return RecipeError(
            where=where,
            what=f"{owner} has no option `{key}`.",
            options=nearest(key, names),
            remedy=f"Its options are: {', '.join(names) or 'none'}.",
        )
    if first["type"] == "missing":
        return RecipeError(where=where, what=f"{owner} needs the option `{key}`.", remedy=f"Set `{key}: …`.")
    name = str(first["loc"][0])
    allowed = f" `{name}` takes: {kind_in_words(model.model_fields[name])}." if name in names else ""
    return RecipeError(
        where=where,
        what=f"{owner} cannot take `{key}: {shortened(repr(first['input']))}`: {first['msg'].lower()}.",
        remedy=f"Give `{key}` a value of the right type.{allowed}",
    )


# ---- kinds in words ---------------------------------------------------------------------------------------
def kind_in_words(field: pydantic.fields.FieldInfo) -> str:
    """The allowed values of an option, such as `float ≥ 0`, `int in [2, 6] or null` or `list of str`."""
    return _in_words(field.annotation, field.metadata)


def _in_words(kind: Any, bounds: list[Any]) -> str:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _in_words(inside[0], [*bounds, *(b for note in inside[1:] for b in _bounds_of(note))])
    if origin in (typing.Union, types.UnionType):
        words = [_in_words(one, bounds) for one in inside if one is not types.NoneType]
        return _alternatives([*words, *(["null"] if types.NoneType in inside else [])])
    if origin is Literal:
        return _alternatives([json.dumps(value, ensure_ascii=False) for value in inside])
    if origin in (tuple, list):
        return _list_in_words(inside, bounds)
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return f"mapping of {', '.join(kind.model_fields)}"
    if (origin or kind) in (dict, collections.abc.Mapping):
        named = inside and inside[1] is not Any
        return f"mapping of {_in_words(inside[0], [])} to {_in_words(inside[1], [])}" if named else "mapping"
    name = "anything" if kind is Any else getattr(kind, "__name__", str(kind))
    return f"{name}{_interval(bounds, whole=kind is int)}"


def _bounds_of(note: Any) -> list[Any]:
    return note.metadata if isinstance(note, pydantic.fields.FieldInfo) else [note]


def _alternatives(words: list[str]) -> str:
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


def _list_in_words(inside: tuple[Any, ...], bounds: list[Any]) -> str:
    kinds = [_in_words(one, []) for one in inside if one is not Ellipsis]
    several = [f"({kind})" if " or " in kind else kind for kind in kinds]
    if len(kinds) == len(inside) > 1:
        return f"list of {len(kinds)}: {', '.join(several)}" if len(set(kinds)) > 1 else f"pair of {several[0]}"
    least, most = _bound(bounds, "min_length"), _bound(bounds, "max_length")
    count = f"{least} to {most} " if least and most else f"at least {least} " if least else ""
    return f"list of {count}{several[0]}"


def _interval(bounds: list[Any], *, whole: bool) -> str:
    """The bounds, such as `` ≥ 0`` or `` in (0, 1]``. For integers they are the smallest and the largest value."""
    low, above, high, below = (_bound(bounds, name) for name in ("ge", "gt", "le", "lt"))
    if whole:
        low, above = (above + 1, None) if above is not None else (low, None)
        high, below = (below - 1, None) if below is not None else (high, None)
    least, most = above if low is None else low, below if high is None else high
    if least is not None and most is not None:
        return f" in {'(' if low is None else '['}{least}, {most}{')' if high is None else ']'}"
    if least is not None:
        return f" {'>' if low is None else '≥'} {least}"
    return "" if most is None else f" {'<' if high is None else '≤'} {most}"


def _bound(bounds: list[Any], name: str) -> Any:
    return next((getattr(one, name) for one in bounds if getattr(one, name, None) is not None), None)
