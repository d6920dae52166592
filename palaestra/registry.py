"""The registry: names of parts and the functions or classes behind them.

Names are found in the source text, so listing parts imports neither torch nor any room of the package, and loading one
imports just its module.

A *part* is a function or a class. Its positional parameters are data; its keyword-only parameters are
the schema that recipes are checked against, and direct calls too (`palaestra.options`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic

from palaestra.clashes import Clash
from palaestra.errors import ContractError, MissingExtra, UnknownName, missing_extra, nearest
from palaestra.index import add, known_parts
from palaestra.options import (
    Columns,
    Degrees,
    Discount,
    Fraction,
    NonNegative,
    OptionGroup,
    Positive,
    PositiveInt,
    Scale,
    Section,
    Singleton,
    Unit,
    ZeroVariance,
    check_options,
    groups_of,
    parameters,
    parameters_of_call,
    put_together,
    schema,
    show_fields,
    take_apart,
    taking_fields,
)
from palaestra.own_files import locate, module_of_file

__all__ = [  # beside constants; what stands in `palaestra.options` too is imported from here
    "Columns",
    "Degrees",
    "Discount",
    "Fraction",
    "NonNegative",
    "OptionGroup",
    "Part",
    "Positive",
    "PositiveInt",
    "Scale",
    "Section",
    "Singleton",
    "Unit",
    "ZeroVariance",
    "check_options",
    "holds",
    "ignored",
    "index",
    "names",
    "part",
    "register",
]

WRITTEN = "Write `module:attribute`, or `path/to/file.py:attribute` from the recipe's folder or the working folder."

SLOTS: dict[str, str] = {
    "environment": "where agents act: tasks, observations, rewards",
    "policy": "what maps observations to actions",
    "context": "how a history becomes prompt tokens",
    "engine": "what generates the responses of language policies",
    "program": "who acts when in an episode",
    "parser": "what a response means: a choice, a number",
    "tool": "what a role alone may call",
    "rollout": "how episodes are run",
    "experience": "what iterations learn from: play, files, a buffer",
    "sampler": "which tasks an iteration plays, and how",
    "strategy": "how plays become trajectories: forks, further groups, second attempts; a list composes",
    "reward": "rows of a table to rewards",
    "selection": "which rows stay in the update",
    "advantage": "credit: rows or tokens to numbers; a list composes",
    "weights": "factors per row or token, multiplied",
    "loss": "per-token policy loss",
    "regularizer": "further per-token terms: KL, entropy, value",
    "learner": "what improves policies from a batch; a list runs in order",
    "optimizer": "parameters to updates",
}

STAGES = frozenset({"reward", "selection", "advantage", "weights"})  # slots between rollout and loss
# What parts once said among their `uses`, and how they say it now.
FORMER_USES = {
    "whole_trajectory": 'scope="trajectory"',
    "whole_group": 'scope="group"',
    "mini_batch": 'scope="minibatch"',
    "mini_columns": "frozen_minibatch=True",
    "every_token": "every_token=True",
    "rejection": 'writes=("weight",)',
}
MAY_BE_OBJECTS = {"tool"}  # `palaestra.tools.tool` makes an object of a function
MAY_HOLD_STATE = STAGES | {"sampler", "strategy", "learner"}

# What parts of any slot may say of themselves, so that it is known before they are made or called: an attribute of the
# function or the class. Beside each what holds where a part says nothing.
DECLARED: dict[str, Any] = {
    "runs": None,  # of a learner: a function of settings and a policy that gives the recipe's parts that it runs
    "provides": None,  # columns that tables have with it, a frozenset; None: unknown
    "abilities": None,  # of an environment, their names (palaestra.data.abilities); of a policy, a function of options
    "outputs_with": None,  # of a policy: a function of options that gives the outputs it has with them
    "stands_on": None,  # of a policy: a function of options that names the policy which must be made before it
    "small": {},  # options with which it is small and quick, for a smoke (palaestra.recipe.smoke)
    "ignores": (),  # keys that it does not read, from its own section: `workers` of a runner, `rollout.tasks` of files
    "called_per": "iteration",  # of a strategy: whether a call gets the plays of an iteration or of a "group"
    "forks": False,  # of a runner: whether episodes can branch off from others
    "opens": False,  # of a runner: whether it has `open()`: episodes that go on by themselves
    "roles": None,  # of a program: names, or functions of options that give them (palaestra.rollout.programs.acted_by)
    "demonstration": None,  # of a program: how a warm start plays it (palaestra.rollout.programs.demonstrated_by)
}

P = TypeVar("P", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part declares beside its code."""

    slot: str
    name: str
    target: Callable[..., Any]
    reads: tuple[str, ...] | None = None
    reads_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignores_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    writes: tuple[str, ...] | None = None
    uses: tuple[str, ...] = ()
    scope: str | Mapping[str, str] = "row"
    frozen_minibatch: bool = False
    every_token: bool = False
    source: str = ""
    extra: str = ""
    modules: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    clashes: tuple[Clash, ...] = ()
    file: str = ""  # of one's own that it was loaded from
    folder: str = ""  # from which a relative path to that file was found

    @property
    def options(self) -> type[pydantic.BaseModel]:
        """The keyword-only parameters as a pydantic model, the fields of a group of options among them."""
        return schema(self.target, f"{self.slot}:{self.name}", self.first)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the positional parameters, of a part with state those of its `__call__`; without `iteration`."""
        return tuple(name for name in self._positional if name != "iteration")

    @property
    def takes_iteration(self) -> bool:
        """Whether it wants the `Iteration` that it works in, by a data parameter of that name."""
        return "iteration" in self._positional

    @property
    def _positional(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = parameters_of_call(self.target) if self.holds_state else parameters(self.target)
        return [p.name for p in taken if p.kind in kinds]

    @property
    def holds_state(self) -> bool:
        """Whether a run makes one object of this part and calls that, iteration after iteration."""
        return self.slot in MAY_HOLD_STATE and inspect.isclass(self.target)

    def reads_with(self, options: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The columns that it reads with these options; None, if it does not say."""
        if self.reads is None:
            return None
        further = [columns for condition, columns in self.reads_if.items() if holds(condition, options)]
        return tuple(dict.fromkeys((*self.reads, *(column for columns in further for column in columns))))

    def ignored_with(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The options that do nothing with these options: name → the condition that makes it so."""
        return ignored(self.ignores_if, options)

    def scope_with(self, options: Mapping[str, Any]) -> str:
        """The unit of tokens that the loss must see whole, with these options; a key of `palaestra.data.SCOPES`."""
        if isinstance(self.scope, str):
            return self.scope
        return next((unit for condition, unit in self.scope.items() if holds(condition, options)), "row")

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.target) or "").partition("\n")[0]

    def check_installed(self, *, where: str) -> None:
        """Raises: MissingExtra, if one of `modules` cannot be found; none of them is imported."""
        for module in self.modules:
            if not _can_be_found(module):
                raise missing_extra(module, extra=self.extra, needed_for=where)

    def check(self, options: Mapping[str, Any], *, where: str) -> dict[str, Any]:
        """The options with defaults filled in.

        Raises: RecipeError, for an unknown key or a value of the wrong kind.
        """
        return check_options(self.options, options, where=where, owner=f"`{self.name}`")


def register(
    slot: str,
    name: str,
    *,
    reads: tuple[str, ...] | None = None,
    reads_if: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ignores_if: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    writes: tuple[str, ...] | None = None,
    uses: tuple[str, ...] = (),
    scope: str | Mapping[str, str] = "row",
    frozen_minibatch: bool = False,
    every_token: bool = False,
    source: str = "",
    extra: str = "",
    modules: tuple[str, ...] = (),
    first: tuple[str, ...] = (),
    clashes: tuple[Clash, ...] = (),
) -> Callable[[P], P]:
    """Make a function or class a part of `slot`, known in recipes as `name`.

    Args:
        slot: a key of `SLOTS`.
        name: lower case, unique in its slot.
        reads: columns that it reads beside those which every table has (group, trajectory, agent, turn, reward), such
            as "state_key", "value_old" or, in a loss, "logprob" and "advantage". Training computes a policy's output
            only if somebody reads it, and a loss is given the columns that it reads and no others. A recipe is refused
            before the run where nothing gives such a column; "invalid?" may be absent. None: not said; a loss is then
            given all columns that cost no further pass.
        reads_if: further columns by condition: `{"level=token": ("value_old",), "clip": ("value_old",)}`. A condition
            is an option that is set (neither None nor 0 nor False), or an option and its value.
        ignores_if: options that do nothing, by condition. A recipe that sets one is refused; `explain` hides them.
        writes: columns that it gives, of an estimator also those beside its credit. Of a part of `weights`:
            ("weight", "counts") where a token of factor 0 leaves the denominators, as a mask does; ("weight",) where it
            stays in them, as a rejected importance weight does. None: not said; it then counts as a mask.
        uses: abilities that the setup must have, such as "critic", "reference", "group", "expert" or "fork". A recipe
            is refused where the policy, the environment, the runner or a setting lacks them.
        scope: of a loss: the unit of tokens that it must see whole, "row", "invocation", "trajectory", "group" or
            "minibatch"; or units by condition: `{"ratio=trajectory": "trajectory"}`.
        frozen_minibatch: of a loss: it reads `batch.minibatch`, the frozen columns of the whole mini-batch.
        every_token: of a loss: it moves tokens that have no advantage, too. source: where the formula comes from.
        extra: the optional dependencies that it needs, as in `pip install 'palaestra[extra]'`.
        modules: of the extra, those that it always imports; a recipe is refused where one is absent.
        clashes: what it does not go with in a recipe, each with the reason and the way out.
        first: options that stand first where options are listed; the others follow in the order of the signature.

    The signature says the rest. Positional parameters are *data*: whoever calls the part hands them over. Keyword-only
    parameters are *options*: a recipe sets them, and a direct call's are checked as a recipe's are.
    """
    if slot not in SLOTS:
        raise UnknownName(where=f"register({slot!r}, {name!r})", what=f"no slot `{slot}`.", options=SLOTS)
    for former in FORMER_USES.keys() & set(uses):
        raise ContractError(
            where=f"register({slot!r}, {name!r})",
            what=f"`uses=({former!r},)` is no ability of the setup.",
            remedy=f"Write `{FORMER_USES[former]}` instead.",
        )

    def decorate(target: P) -> P:
        made: Any = _checked_class(target) if inspect.isclass(target) else _checked_function(target)
        made.part = Part(
            slot=slot,
            name=name,
            target=target if inspect.isclass(target) else taking_fields(target),
            reads=reads,
            reads_if=reads_if,
            ignores_if=ignores_if,
            writes=writes,
            uses=uses,
            scope=scope,
            frozen_minibatch=frozen_minibatch,
            every_token=every_token,
            source=source,
            extra=extra,
            modules=modules,
            first=first,
            clashes=clashes,
        )
        return made  # type: ignore[no-any-return]

    return decorate


def holds(condition: str, options: Mapping[str, Any]) -> bool:
    """Whether `option` is set, or `option=value` is its value."""
    name, compares, value = condition.partition("=")
    chosen = options.get(name)
    return str(chosen) == value if compares else bool(chosen)


def ignored(ignores_if: Mapping[str, tuple[str, ...]], options: Mapping[str, Any]) -> dict[str, str]:
    """Option that does nothing → the first condition that holds and says so."""
    holding = [condition for condition in ignores_if if holds(condition, options)]
    return {name: condition for condition in reversed(holding) for name in ignores_if[condition]}


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
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


def _checked_class(cls: Any) -> Any:
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
    """Data parameters that a call may name."""
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
    """What a direct call gives by name: data as they are, options checked, groups put together."""
    data = {name: value for name, value in given.items() if name in by_name}
    options = {name: value for name, value in given.items() if name not in by_name}
    if not options:
        return data
    flat = take_apart(groups, options, where=where, owner=owner)
    return data | put_together(groups, check_options(model, flat, where=where, owner=owner))


# ---- names ------------------------------------------------------------------------------------------------
@functools.cache
def index() -> dict[str, dict[str, str]]:
    """slot → name → `module:attribute`, of this package and of installed packages' entry points.

    An outside package adds parts with the entry-point group `palaestra.parts`, each named `slot.name`.

    Raises: ContractError, if two parts of a slot share a name, or a slot does not exist.
    """
    found: dict[str, dict[str, str]] = {slot: {} for slot in SLOTS}
    for slot, parts in known_parts().items():
        if slot not in SLOTS:
            raise ContractError(
                where=", ".join(parts.values()), what=f"no slot is called `{slot}`.", options=nearest(slot, SLOTS)
            )
        found[slot].update(parts)
    for entry in metadata.entry_points(group="palaestra.parts"):
        slot, _, name = entry.name.partition(".")
        add(found, slot, name, entry.value)
    return found


def names(slot: str) -> list[str]:
    """All known names of a slot, sorted."""
    return sorted(index()[slot])


def registration(target: Any) -> Part | None:
    """What `@register` made of a function or class, also of one bound to options; None: it is not registered."""
    declares: Part | None = getattr(target.func if isinstance(target, functools.partial) else target, "part", None)
    return declares


def declared(target: Any, name: str) -> Any:
    """What a part says of itself by an attribute, a key of `DECLARED`; where it says nothing, the value there.

    Args:
        target: a function, a class or an object of it, or a part that a recipe has bound to options.
    """
    made = None if isinstance(target, functools.partial) else registration(target)
    return getattr(target, name, DECLARED[name] if made is None else getattr(made.target, name, DECLARED[name]))


def part(slot: str, name: str, *, where: str = "", folders: Sequence[str] = (".",)) -> Part:
    """The part of this name.

    Args:
        slot: a key of `SLOTS`.
        name: a registered name; or `module:attribute`; or `path/to/file.py:attribute` for a part of one's own.
        where: the place in a recipe, for the message.
        folders: in which a relative path is looked for, in this order.

    Raises: UnknownName, with the nearest names.
    """
    where = where or f"{slot}: {name}"
    target = index()[slot].get(name)
    if target is None and ":" not in name:
        others = [other for other, parts in index().items() if name in parts]
        if others:
            what = f"`{name}` is a part of slot `{'` and `'.join(others)}`, not of `{slot}`."
            raise UnknownName(where=where, what=what, remedy="Move it there.")
        raise UnknownName(
            where=where,
            what=f"no {slot} is called `{name}`.",
            options=nearest(name, names(slot)),
            remedy=f"`palaestra methods --slot {slot}` lists all; a part of your own is `path/to/file.py:function`.",
        )
    found, own = _load(target or name, where=where, folders=folders)
    declared = vars(found).get("part") if hasattr(found, "__dict__") else None  # never a parent's
    if declared is None and slot not in MAY_BE_OBJECTS and not callable(found):
        raise UnknownName(
            where=where, what=f"`{name}` is neither a function nor a class, but a {type(found).__name__}."
        )
    if declared is None:
        bare = Part(slot=slot, name=name, target=taking_fields(found) if inspect.isfunction(found) else found)
        return replace(bare, file=own.get("file", ""), folder=own.get("folder", ""))
    if declared.slot != slot:
        raise UnknownName(where=where, what=f"`{name}` is a part of slot `{declared.slot}`, not of `{slot}`.")
    return replace(declared, **own) if own else declared  # type: ignore[no-any-return]


def _load(target: str, *, where: str, folders: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """What a name stands for, and `file` and `folder` of a part in a file of one's own."""
    place, _, attribute = target.rpartition(":")
    own: dict[str, str] = {}
    try:
        if place.endswith(".py"):
            own = locate(Path(place), folders)
            module = module_of_file(Path(own["file"]))
        else:
            module = importlib.import_module(place)
        if not hasattr(module, attribute):
            raise UnknownName(
                where=where,
                what=f"`{target}` cannot be loaded: {place} has no `{attribute}`.",
                options=nearest(attribute, (name for name in vars(module) if not name.startswith("_"))),
                remedy=WRITTEN,
            )
        return getattr(module, attribute), own
    except (FileNotFoundError, ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and place.startswith("palaestra."):
            what = f"the package `{error.name}` is not installed."
            raise MissingExtra(where=where, what=what, remedy="Install it with: pip install palaestra") from error
        raise UnknownName(
            where=where,
            what=f"`{target}` cannot be loaded: {error}.",
            remedy=WRITTEN,
        ) from error


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
    except ValueError:  # it was imported in an unusual way
        return True
