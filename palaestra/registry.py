"""The registry finds the function or class of a part by the part's slot and name.

Names are found in the source text. So listing the parts imports neither torch nor any other folder of the package, and
loading one part imports only its module.

A *part* is a function or a class. Its positional parameters are data. Its keyword-only parameters are its options:
recipes and direct calls are checked against them (`palaestra.options`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic

from palaestra.clashes import Clash
from palaestra.errors import (
    ContractError,
    MissingExtra,
    PalaestraError,
    RecipeError,
    UnknownName,
    missing_extra,
    nearest,
)
from palaestra.index import add, known_parts
from palaestra.options import (
    AtMost,
    Columns,
    Count,
    Degrees,
    Discount,
    File,
    Files,
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
from palaestra.own_files import locate, module_of_file, same_folder, user_files
from palaestra.own_objects import MODULE
from palaestra.own_text import file_of_module, read_part, reads_only
from palaestra.trust import refuse_inside

__all__ = [  # without constants; import the names of `palaestra.options` from here
    "AtMost",
    "Columns",
    "Count",
    "Degrees",
    "Discount",
    "File",
    "Files",
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
    "verifier": "what a reply is worth, for the environment `dataset`",
    "policy": "what maps observations to actions",
    "context": "how a history becomes prompt tokens",
    "engine": "what generates the responses of language policies",
    "program": "who acts when in an episode",
    "reader": "what of a reply is the act: all of it, a tag, the last line, a tool call",
    "parser": "what a response means: a choice, a number",
    "tool": "what a role alone may call",
    "rollout": "how episodes are run",
    "experience": "what iterations learn from: play, files, a buffer",
    "sampler": "which tasks an iteration plays, and how",
    "strategy": "how plays become trajectories: forks, further groups, second attempts; a list composes",
    "reward": "rewards of the rows of a table",
    "selection": "which rows stay in the update",
    "advantage": "credit: one number for each row or token; a list composes",
    "weights": "factors per row or token, multiplied",
    "loss": "per-token policy loss",
    "regularizer": "further per-token terms: KL, entropy, value",
    "learner": "what improves policies from a batch; a list runs in order",
    "optimizer": "how gradients change the parameters",
}

STAGES = frozenset({"reward", "selection", "advantage", "weights"})  # slots between rollout and loss
# Former values of `uses` → the parameter of `register` that replaces each.
FORMER_USES = {
    "whole_trajectory": 'scope="trajectory"',
    "whole_group": 'scope="group"',
    "mini_batch": 'scope="minibatch"',
    "mini_columns": "frozen_minibatch=True",
    "every_token": "every_token=True",
    "rejection": 'writes=("weight",)',
}
SINGLE = frozenset({"one_agent", "one_act"})  # in `uses`: a single agent; episodes that end with the first act
MAY_BE_OBJECTS = {"tool"}  # `palaestra.tools.tool` makes an object of a function
MAY_HOLD_STATE = STAGES | {"sampler", "strategy", "learner"}

# Attributes that a part of any slot may declare on its function or class. They are read before the part is made or
# called. Each has the value here where a part does not declare it.
DECLARED: dict[str, Any] = {
    "runs": None,  # of a learner: a function of settings and a policy that returns the recipe's parts that it runs
    "provides": None,  # frozenset of the columns that it gives to tables; None: unknown
    "abilities": None,  # of an environment, their names (palaestra.data.abilities); of a policy, a function of options
    "outputs_with": None,  # of a policy: a function of options that returns the outputs which it has with them
    "model_size": None,  # of a policy: a function of options and its bases' sizes (palaestra.models.sizes.PolicySize)
    # Of any other part: a function of options, the policies' sizes by name, and the run's settings. It returns the
    # models which the part loads or copies (palaestra.models.sizes.LoadedModel).
    "loads": None,
    "stands_on": None,  # of a policy: a function of options that returns the name of the policy it is built on
    "elsewhere": None,  # of an engine: a function of options that says which other program generates
    "chat_model": False,  # of a policy: whether it is a chat model without a renderer, which must be told of tools
    "no_template": None,  # of a policy: a function of options that says why it has no chat template; None, if it has
    "fits": None,  # a function of options, settings and environment that raises if the part cannot work with them
    "one_act": False,  # of an environment: whether every episode ends with the first act
    "keeps_messages": False,  # of a context: whether a chat template gets its turns as messages, and so declares tools
    "small": {},  # options that make it small and quick, for a smoke run (palaestra.recipe.smoke)
    "ignores": (),  # keys that it does not read, from its own section: `workers` of a runner, `rollout.tasks` of files
    "called_per": "iteration",  # of a strategy: whether a call gets the plays of an iteration or of a "group"
    "forks": False,  # of a runner: whether episodes can branch off from others
    "opens": False,  # of a runner: whether it has `open()`, for asynchronous collection
    "lock_step": False,  # of a runner: whether all episodes go on together, so that none can wait for something
    "waits": False,  # of a policy: whether it waits for an engine or a server; of a program: for more than acts
    "roles": None,  # of a program: names, or functions of options that give names (palaestra.rollout.programs.acted_by)
    "demonstration": None,  # of a program: how a warm start plays it (palaestra.rollout.programs.demonstrated_by)
}

P = TypeVar("P", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A registered part: its function or class, and what `register` declares about it."""

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
    file: str = ""  # the user's file that holds the part; empty for an installed part
    folder: str = ""  # the folder that a relative path to this file starts from

    @property
    def options(self) -> type[pydantic.BaseModel]:
        """The keyword-only parameters as a pydantic model. The fields of a group of options are options too."""
        target = self.target if callable(self.target) else _no_options
        return schema(target, f"{self.slot}:{self.name}", self.first)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the positional parameters without `iteration`; for a part with state, those of its `__call__`."""
        return tuple(name for name in self._positional if name != "iteration")

    @property
    def takes_iteration(self) -> bool:
        """Whether it has a data parameter `iteration`, and so gets the current `Iteration`."""
        return "iteration" in self._positional

    @property
    def _positional(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not callable(self.target):
            return []
        taken = parameters_of_call(self.target) if self.holds_state else parameters(self.target)
        return [p.name for p in taken if p.kind in kinds]

    @property
    def holds_state(self) -> bool:
        """Whether a run makes one object of this part and calls this object in every iteration."""
        return self.slot in MAY_HOLD_STATE and inspect.isclass(self.target)

    def reads_with(self, options: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The columns that it reads with these options; None, if it declares none."""
        if self.reads is None:
            return None
        further = [columns for condition, columns in self.reads_if.items() if holds(condition, options)]
        return tuple(dict.fromkeys((*self.reads, *(column for columns in further for column in columns))))

    def ignored_with(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The options that have no effect beside these options: name → the condition for that."""
        return ignored(self.ignores_if, options)

    def scope_with(self, options: Mapping[str, Any]) -> str:
        """The unit of tokens that the loss must see whole with these options: a key of `palaestra.data.SCOPES`."""
        if isinstance(self.scope, str):
            return self.scope
        return next((unit for condition, unit in self.scope.items() if holds(condition, options)), "row")

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.target) or "").partition("\n")[0]

    def check_installed(self, *, where: str) -> None:
        """Look for the packages in `modules` without importing them. Raises: MissingExtra, if one cannot be found."""
        for module in self.modules:
            if not _can_be_found(module):
                raise missing_extra(module, extra=self.extra, needed_for=where)

    def check(self, options: Mapping[str, Any], *, where: str) -> dict[str, Any]:
        """Check options. Returns them with the defaults filled in.

        Raises: RecipeError, for an unknown key or a value of the wrong kind.
        """
        return check_options(self.options, options, where=where, owner=f"`{self.name}`")


def _no_options() -> None:
    """What stands for an object in place of a function, such as a tool, when options are read."""


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
    """Register a function or class as a part of `slot`. Recipes call it `name`.

    Args:
        slot: a key of `SLOTS`.
        name: in lower case, unique in its slot.
        reads: columns that the part reads, such as "state_key", "value_old" or, in a loss, "logprob" and "advantage".
            Leave out those of every table (group, trajectory, agent, turn, reward). Training computes only the outputs
            of a policy that a part reads, and a loss gets only the columns that it reads. If nothing provides a column,
            the recipe is refused before the run; "invalid?" marks a column that may be absent. None: not declared; a
            loss then gets all columns that need no further forward pass.
        reads_if: further columns by condition: `{"level=token": ("value_old",), "clip": ("value_old",)}`. A condition
            is an option that is set (not None, 0 or False), or an option with its value.
        ignores_if: options without effect, by condition. A recipe that sets one is refused; `explain` hides them.
        writes: all columns that the part gives, such as ("advantage",) for an estimator. A part of `weights` declares
            ("weight", "counts") if a token with factor 0 leaves the denominators, as with a mask, and ("weight",) if
            it stays in them, as with a rejected importance weight. None: it is treated as a mask.
        uses: abilities that the setup must have, such as "critic", "reference", "group", "expert" or "fork". If the
            policy, environment, runner or a setting lacks one, the recipe is refused. Also "one_agent" and "one_act".
        scope: for a loss, the unit of tokens that it must see whole: "row", "invocation", "trajectory", "group" or
            "minibatch"; or units by condition: `{"ratio=trajectory": "trajectory"}`.
        frozen_minibatch: for a loss, whether it reads `batch.minibatch`, the frozen columns of the whole mini-batch.
        every_token: for a loss, whether it also trains tokens without an advantage. source: of the formula.
        extra: the optional dependencies that the part needs, as in `pip install 'palaestra[extra]'`.
        modules: packages of the extra that the part always imports. If one is absent, the recipe is refused.
        clashes: choices that cannot stand in one recipe with the part, each with the reason and a way out.
        first: options that are listed first. The others follow in the order of the signature.

    The signature declares the rest. Positional parameters are *data*, which the caller of the part gives. Keyword-only
    parameters are *options*, which a recipe sets. The options of a direct call are checked in the same way.
    """
    if slot not in SLOTS:
        raise UnknownName(where=f"register({slot!r}, {name!r})", what=f"no slot is called `{slot}`.", options=SLOTS)
    for former in FORMER_USES.keys() & set(uses):
        raise ContractError(
            where=f"register({slot!r}, {name!r})",
            what=f"`uses` has {former!r}, which is not an ability of the setup.",
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


def declaring(**attributes: Any) -> Callable[[P], P]:
    """Decorate a function with attributes of `DECLARED`. It stands below `@register`."""

    def decorate(target: P) -> P:
        for name, value in attributes.items():
            setattr(target, name, value)
        return target

    return decorate


def holds(condition: str, options: Mapping[str, Any]) -> bool:
    """Whether a condition holds: `option` if the option is set, `option=value` if it has this value."""
    name, compares, value = condition.partition("=")
    chosen = options.get(name)
    return str(chosen) == value if compares else bool(chosen)


def ignored(ignores_if: Mapping[str, tuple[str, ...]], options: Mapping[str, Any]) -> dict[str, str]:
    """Each option without effect → the first condition for that which holds."""
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


# ---- names ------------------------------------------------------------------------------------------------
@functools.cache
def index() -> dict[str, dict[str, str]]:
    """Slot → name → `module:attribute`, for the parts of this package and of other installed packages.

    Another package adds parts by entry points of the group `palaestra.parts`, each with the name `slot.name`.

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
    """The registered part of a function or class, also through a `functools.partial`; None, if it is not registered."""
    declares: Part | None = getattr(target.func if isinstance(target, functools.partial) else target, "part", None)
    return declares


def declared(target: Any, name: str) -> Any:
    """The value of an attribute that a part may declare, or the default of `DECLARED`.

    Args:
        target: a function, a class, an object of a class, or a `functools.partial` with options.
        name: a key of `DECLARED`.
    """
    made = None if isinstance(target, functools.partial) else registration(target)
    return getattr(target, name, DECLARED[name] if made is None else getattr(made.target, name, DECLARED[name]))


def part(slot: str, name: str, *, where: str = "", folders: Sequence[str] = (".",)) -> Part:
    """The part of this name.

    Args:
        slot: a key of `SLOTS`.
        name: a registered name, or `module:attribute`, or `path/to/file.py:attribute` for a part of the user's own.
        where: the place in a recipe, for the message of an error.
        folders: the folders in which a relative path is searched for, in this order.

    Raises: UnknownName, with the nearest names.
    """
    where = where or f"{slot}: {name}"
    target = index()[slot].get(name)
    if target is None and reads_only() and _must_be_read(name):
        return _read(slot, name, where=where, folders=folders)
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
    declared = vars(found).get("part") if hasattr(found, "__dict__") else None  # not one that the class inherits
    if declared is None and slot not in MAY_BE_OBJECTS and not callable(found):
        raise UnknownName(
            where=where, what=f"`{name}` must be a function or a class, and it is of type {type(found).__name__}."
        )
    if declared is None:
        bare = Part(slot=slot, name=name, target=taking_fields(found) if inspect.isfunction(found) else found)
        return replace(bare, file=own.get("file", ""), folder=own.get("folder", ""))
    if declared.slot != slot:
        raise UnknownName(where=where, what=f"`{name}` is a part of slot `{declared.slot}`, not of `{slot}`.")
    return replace(declared, **own) if own else declared  # type: ignore[no-any-return]


def _must_be_read(name: str) -> bool:
    """Whether a name means code of the user that this process has not imported yet."""
    place = name.rpartition(":")[0]
    known = place == MODULE or place in sys.modules or place.startswith("palaestra.")
    return place.endswith(".py") or bool(place and not known)


def _read(slot: str, name: str, *, where: str, folders: Sequence[str]) -> Part:
    """A part of the user as the text of its file describes it, without importing it. Raises: as `part`."""
    place, _, attribute = name.rpartition(":")
    own: dict[str, str] = {}
    try:
        if place.endswith(".py"):
            own = locate(Path(place), folders)
        file = Path(own["file"]) if own else file_of_module(place)
        if file is None:
            raise ModuleNotFoundError(f"no module {place}, or it is no Python text")
        stub, declares = read_part(name, file, attribute)
    except (OSError, ImportError, AttributeError, SyntaxError, ValueError, RecursionError) as error:
        what = f"`{name}` cannot be loaded: {error}."
        raise UnknownName(where=where, what=what, remedy=WRITTEN) from error
    declared = declares.pop("slot", slot)
    if declared != slot:
        raise UnknownName(where=where, what=f"`{name}` is a part of slot `{declared}`, not of `{slot}`.")
    part = Part(slot=slot, name=name, target=stub, file=own.get("file", ""), folder=own.get("folder", ""))
    return replace(part, **declares)


def _load(target: str, *, where: str, folders: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """The object behind a name; and `file` and `folder`, if it comes from a file of the user."""
    place, _, attribute = target.rpartition(":")
    own: dict[str, str] = {}
    if not attribute.isidentifier():
        raise UnknownName(where=where, what=f"`{target}` cannot be loaded: `{attribute}` is no name.", remedy=WRITTEN)
    try:
        if place.endswith(".py"):
            own = locate(Path(place), folders)
            if own["file"] not in user_files().values():  # others run already
                refuse_inside(Path(own["file"]), where=where)
        with same_folder(place):
            module = module_of_file(Path(own["file"])) if own else importlib.import_module(place)
        if not hasattr(module, attribute):
            raise UnknownName(
                where=where,
                what=f"`{target}` cannot be loaded: {place} has no `{attribute}`.",
                options=nearest(attribute, (name for name in vars(module) if not name.startswith("_"))),
                remedy=WRITTEN,
            )
        return getattr(module, attribute), own
    except (FileNotFoundError, ModuleNotFoundError, AttributeError) as error:
        if place == MODULE:
            what = f"`{attribute}` was an object of another program, which this one does not have."
            remedy = f"Put it in a file, and give it as `path/to/file.py:{attribute}`, or import it from a module."
            raise UnknownName(where=where, what=what, remedy=remedy) from error
        if isinstance(error, ModuleNotFoundError) and place.startswith("palaestra."):
            what = f"the package `{error.name}` is not installed."
            raise MissingExtra(where=where, what=what, remedy="Install it with: pip install palaestra") from error
        raise UnknownName(
            where=where,
            what=f"`{target}` cannot be loaded: {error}.",
            remedy=WRITTEN,
        ) from error
    except PalaestraError:
        raise
    except Exception as error:  # a file of the user may raise anything
        if place.startswith("palaestra."):
            raise
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own.get("file")
        ]
        line = f", in line {lines[-1]}" if lines else ""  # a fault of syntax says its line itself
        raise RecipeError(
            where=where,
            what=f"`{target}` fails when it is imported{line}: {type(error).__name__}: {error}.",
            remedy="Import the file in Python to see the whole traceback.",
        ) from error


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
    except ValueError:  # the module is imported and has no `__spec__`
        return True
