"""What a part is: a function or a class, with what `register` declares about it.

Its positional parameters are data. Its keyword-only parameters are its options: recipes and direct calls are checked
against them (`palaestra.registry.options`).
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic

from palaestra.errors import UnknownName, missing_extra
from palaestra.registry.clashes import Clash
from palaestra.registry.direct_calls import check_calls_of_class, check_calls_of_function
from palaestra.registry.options import check_options, parameters, parameters_of_call, schema, taking_fields
from palaestra.registry.slots import DECLARED, MAY_HOLD_STATE, SLOTS

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

    def decorate(target: P) -> P:
        made: Any = check_calls_of_class(target) if inspect.isclass(target) else check_calls_of_function(target)
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


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
    except ValueError:  # the module is imported and has no `__spec__`
        return True
