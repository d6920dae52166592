"""The stages between experience and learners. Their parts turn episodes into numbers for each token."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Credit
from palaestra.boundary.process import protected
from palaestra.data import Iteration, StepTable
from palaestra.data.protocols import StatefulPart, complete
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.registry import declared, registration
from palaestra.registry.bound import BoundPart
from palaestra.registry.column_names import (
    CREDIT,
    FROM_EPISODES,
    KEYS,
    OF_TOKENS,
    ability_of,
    default_of,
    is_computed,
    is_output,
)
from palaestra.training.settings import RunSettings

Estimator = Callable[..., Any]


def started(parts: Sequence[BoundPart]) -> list[BoundPart]:
    """The parts as a run holds them: each part with state gets its object.

    Raises: ContractError, for an object that lacks a member of `StatefulPart`.
    """
    held = [part.started() for part in parts]
    for part in held:
        if part.state is not None:
            complete(part.state, StatefulPart, where=f"{part.part.slot}: {part.name}")
    return held


@dataclass(slots=True, kw_only=True)
class Stages:
    """The parts between experience and learners, in the order in which they run.

    Attributes:
        updates: policy → the parts that read columns in its updates: learners, losses and regularizers.
        frozen: whether the acts of an agent are never learned from.
        declared: columns that the environment or a part declares in `provides`.
    """

    reward: Sequence[BoundPart]
    selection: Sequence[BoundPart]
    advantage: Sequence[BoundPart]
    weights: Sequence[BoundPart]
    updates: Mapping[str, Sequence[BoundPart]] = field(default_factory=dict)
    frozen: Callable[[str], bool] = lambda agent: False
    declared: Collection[str] = ()

    @property
    def all(self) -> tuple[BoundPart, ...]:
        """Every part, in the order in which they run."""
        return (*self.reward, *self.selection, *self.advantage, *self.weights)

    @property
    def stateful(self) -> dict[str, StatefulPart]:
        """Slot and position (`reward.0`) → the object of a part with state."""
        slots = ("reward", "selection", "advantage", "weights")
        return {
            f"{slot}.{place}": bound.state
            for slot in slots
            for place, bound in enumerate(getattr(self, slot))
            if bound.state is not None
        }

    @property
    def reads_advantage(self) -> bool:
        """Whether an estimator must run: a factor or an update reads the advantage or another column that it gives."""
        gives = {*CREDIT, *(column for part in self.advantage for column in part.part.writes or ())}
        readers = [*self.weights, *(part for parts in self.updates.values() for part in parts)]
        return any(part.reads is None or not gives.isdisjoint(part.reads) for part in readers)

    @property
    def running(self) -> tuple[BoundPart, ...]:
        """The parts that run: every part with its updates, without estimators whose columns nobody reads."""
        idle = [] if self.reads_advantage else [part for part in self.advantage if not part.part.holds_state]
        every = (*self.all, *(part for parts in self.updates.values() for part in parts))
        return tuple(part for part in every if not any(part is other for other in idle))

    def with_declared(self, table: StepTable) -> StepTable:
        """The table with the declared columns that a part must read and that no step of it has.

        Episodes that a limit cuts may end before their environment gives a column. Its values are then those of a step
        without it: no label, NaN where a value may be missing, else 0.
        """
        lacking = {name for part in self.running for name in part.reads or () if name not in table}
        empty: dict[str, Any] = {}
        for name in sorted(lacking.intersection(self.declared)):
            empty[name] = [None] * len(table) if name in KEYS else torch.full((len(table),), default_of(name))
        return table.replace(**empty)


def stages_of(
    settings: RunSettings,
    source: Any,
    *,
    learners: Sequence[BoundPart],
    trained: Iterable[str],
    make: Callable[[Sequence[BoundPart]], Sequence[BoundPart]] = list,
    frozen: Callable[[str], bool] = lambda agent: False,
) -> Stages:
    """The stages of a recipe.

    Args:
        source: the environment. learners: of the recipe. trained: names of the policies that learn.
        make: gives the parts as the stages hold them: `started` for a run.
        frozen: whether the acts of an agent are never learned from.
    """
    return Stages(
        reward=make(settings.reward),
        selection=make(settings.selection),
        advantage=make(settings.advantage),
        weights=make(settings.weights),
        updates={name: [*learners, *_run_by(learners, settings, name)] for name in trained},
        frozen=frozen,
        declared=declared_columns(settings, source),
    )


def _run_by(learners: Sequence[BoundPart], settings: RunSettings, policy: str) -> list[BoundPart]:
    """The parts that the learners run in their updates of this policy: its loss and regularizers."""
    running = [declared(learner.part.target, "runs") for learner in learners]
    return [part for runs in running if runs is not None for part in runs(settings, policy)]


def declared_columns(settings: RunSettings, source: Any) -> frozenset[str]:
    """The columns that the environment `source` and the parts of the recipe declare in `provides`."""
    giving = [settings.rollout.runner, settings.program, settings.experience, *settings.strategy]
    giving += [role.context for role in settings.agents.values()]
    giving += [*settings.reward, *settings.selection, *settings.advantage, *settings.weights]
    by_parts = {column for part in giving for column in declared(part.part.target, "provides") or ()}
    return frozenset(by_parts.union(declared(source, "provides") or ()))


def refuse_missing_columns(
    stages: Stages, environment: BoundPart, source: Any, *, outputs: Collection[str]
) -> list[str]:
    """Refuse a part that reads a column which the environment, with its options, does not give.

    The class of an environment names in `provides` the columns that its episodes may have. An object may name fewer.

    Args:
        source: an object of the environment. outputs: of the policies.

    Returns: a line, if the environment names no columns, so that only the first episodes show what is missing.
    Raises: RecipeError.
    """
    possible, given = declared(environment.part.target, "provides"), declared(source, "provides")
    unknown: dict[str, str] = {}
    for part in stages.running:
        written = {column for other in stages.running if other is not part for column in other.part.writes or ()}
        reads = {"state_key" if column == "next_key" else column for column in part.reads or ()}
        reads -= FROM_EPISODES | OF_TOKENS | {*CREDIT} | written | {*outputs, *stages.declared}
        for column in sorted(column for column in reads if _is_of_environments(column)):
            if given is None:
                unknown.setdefault(column, part.name)
            elif possible is None or column in possible:
                slot = part.part.slot
                raise RecipeError(
                    where=f"{slot}: {part.name}",
                    what=f"it reads the column `{column}`, and environment `{environment.name}` gives none with its "
                    "options.",
                    remedy="Change the options of the environment, or use a part that does not need the column "
                    f"(`palaestra methods --slot {slot} --without {column}` lists all).",
                )
    if not unknown:
        return []
    told = ", ".join(f"`{column}` ({reader})" for column, reader in unknown.items())
    return [f"environment `{environment.name}` has no `provides`: only its episodes show whether it gives {told}"]


def _is_of_environments(column: str) -> bool:
    return not (column.endswith("?") or ability_of(column) or is_output(column) or is_computed(column))


def learned_from(table: StepTable, frozen: Callable[[str], bool]) -> Tensor:
    """1 on rows that the updates may learn from, 0 on rows of frozen roles: float32 (rows,)."""
    agents = torch.tensor([0.0 if frozen(str(label)) else 1.0 for label in table.labels("agent")])
    return agents[table["agent"]]


# ---- rewards and selection --------------------------------------------------------------------------------
def apply_rewards(parts: Sequence[BoundPart], table: StepTable, iteration: Iteration) -> StepTable:
    """The table after each reward part, which gives the column `reward` or several columns."""
    for part in parts:
        with protected(f"reward {part.name}"):
            given = part.at(iteration)(table)
        table = table.replace(**(given if isinstance(given, Mapping) else {"reward": given}))
    return table


def apply_selection(parts: Sequence[BoundPart], table: StepTable, iteration: Iteration) -> StepTable:
    """The table whose row weights are multiplied by what each part of `selection` keeps."""
    for part in parts:
        with protected(f"selection {part.name}"):
            kept = part.at(iteration)(table)
        table = table.replace(row_weight=table.row_weight * kept)
    return table


# ---- advantages -------------------------------------------------------------------------------------------
def assign_credit(parts: Sequence[Estimator], table: StepTable) -> StepTable:
    """Run one estimator and then filters, for example those of `advantage: [gigpo, whiten]`.

    Args:
        parts: the first is called with the table. Each later one is called with the table, which has the estimator's
            further columns by then, and with the advantage so far.

    Returns: the table with the column `advantage` (tokens,) and the further columns of the estimator. An estimator with
        a critic adds `value_target` and `value_weight` (tokens,). The weight is 1 where a target counts: on all tokens
        at token level, on the first token of each row at row level, and on no token of an agent without a critic. If
        no row counts, no part is called, and all columns are 0.
    Raises: RecipeError, unless the list has one estimator, at its head; ContractError, for a result of the wrong shape
        or one that is not finite, and for a column that the table has already or that training computes.
    """
    first, *filters = _checked(parts)
    if not bool((table.row_weight > 0).any()):
        written = {name for part in parts if (made := registration(part)) for name in made.writes or ()}
        sizes = {name: table.tokens if name in OF_TOKENS else len(table) for name in written | {"advantage"}}
        return table.replace(**{name: torch.zeros(size) for name, size in sizes.items()})
    with protected(f"advantage {_name(first)}"):
        given = first(table)
    credit = given if isinstance(given, Credit) else Credit(given)
    advantage = _sound(credit.advantage, table, first)
    _check_columns(credit.columns, table, first)
    table = table.replace(**credit.columns)
    for part in filters:
        with protected(f"advantage {_name(part)}"):
            further = part(table, advantage)
        advantage = _sound(further, table, part)
    columns = {"advantage": table.per_token(advantage).float()}
    if credit.target is not None:
        columns["value_target"], columns["value_weight"] = _targets(credit.target, table)
    return table.replace(**columns)


def _targets(target: Tensor, table: StepTable) -> tuple[Tensor, Tensor]:
    """Targets and their weights for each token. The target of a row is put on the row's first token."""
    if len(target) == table.tokens:
        return target.nan_to_num(), target.isfinite().float()
    first = table["token_count"].cumsum(0) - table["token_count"]
    spread, weight = torch.zeros(table.tokens), torch.zeros(table.tokens)
    spread[first], weight[first] = target.nan_to_num(), target.isfinite().float()
    return spread, weight


# ---- what parts must be and give --------------------------------------------------------------------------
def _checked(parts: Sequence[Estimator]) -> Sequence[Estimator]:
    kinds = ["filter" if len(_data(part)) > 1 else "estimator" for part in parts]
    names = [_name(part) for part in parts]
    place = f"advantage: [{', '.join(names)}]"
    if not parts or kinds[0] == "filter":
        raise RecipeError(
            where=place,
            what="a list of advantages must begin with an estimator.",
            remedy="Put an estimator such as grpo or gigpo first; filters such as whiten follow it.",
        )
    if "estimator" in kinds[1:]:
        second = names[kinds.index("estimator", 1)]
        raise RecipeError(
            where=place,
            what=f"`{names[0]}` and `{second}` are both estimators. A list has one estimator, and filters after it.",
            remedy=f"Leave one out. A filter reads the advantage so far, and `{second}` does not.",
        )
    return parts


def _data(part: Estimator) -> tuple[str, ...]:
    """Names of the positional parameters, which are the data that the part takes."""
    made = registration(part)
    if made is not None:
        return tuple(made.data)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(part).parameters.values() if p.kind in positional)


def _name(part: Estimator) -> str:
    made = registration(part)
    inner = part.func if isinstance(part, functools.partial) else part
    return str(made.name if made is not None else getattr(inner, "__name__", type(inner).__name__))


def _sound(advantage: Any, table: StepTable, part: Estimator) -> Tensor:
    if not isinstance(advantage, Tensor) or advantage.shape not in ((len(table),), (table.tokens,)):
        found = tuple(advantage.shape) if isinstance(advantage, Tensor) else type(advantage).__name__
        raise ContractError(
            where=f"advantage: {_name(part)}",
            what=f"it gave {found} for {len(table)} rows and {table.tokens} tokens.",
            remedy="Return one number for each row, (rows,), or for each response token, (tokens,).",
        )
    if not bool(advantage.isfinite().all()):
        bad = int((~advantage.isfinite()).sum())
        raise ContractError(
            where=f"advantage: {_name(part)}", what=f"{bad} of {len(advantage)} advantages are not finite."
        )
    return advantage


def _check_columns(columns: Mapping[str, Any], table: StepTable, part: Estimator) -> None:
    made = registration(part)
    promised = set() if made is None else {*(made.writes or ())} - {*CREDIT}
    for name in sorted(promised - {*columns}):
        raise ContractError(
            where=f"advantage: {_name(part)}",
            what=f"it declares the column `{name}` in `writes` and gave {', '.join(sorted(columns)) or 'no column'}.",
            remedy=f"Return `Credit(advantage, columns={{{name!r}: …}})`.",
        )
    for name, column in columns.items():
        where = f"advantage: {_name(part)}, column `{name}`"
        if name in table or is_computed(name):
            raise ContractError(
                where=where,
                what="the table has it already." if name in table else "training computes a column of this name.",
                remedy="Give the column another name, and name it in `writes`.",
            )
        if not isinstance(column, Tensor) or column.ndim == 0 or len(column) not in (len(table), table.tokens):
            found = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise ContractError(
                where=where,
                what=f"it is {found} for {len(table)} rows and {table.tokens} tokens.",
                remedy="Give a tensor with one value for each row or each response token.",
            )
        if column.is_floating_point() and not bool(column.isfinite().all()):
            raise ContractError(where=where, what="it has a value that is not finite.")


# ---- weights ----------------------------------------------------------------------------------------------
def weigh(table: StepTable, weights: Sequence[BoundPart], iteration: Iteration, trained: Tensor) -> StepTable:
    """The table with two further columns for each token.

    `weight` is the product of all factors. `counts` is 1 if the token is in the denominators of the loss, and else 0.
    """
    with protected("a part of `weights`"):
        factors = [table.row_weight * trained, *(part.at(iteration)(table) for part in weights)]
    masks = [True, *(part.part.writes is None or "counts" in part.part.writes for part in weights)]
    weight = combine(factors, table)
    counts = (combine(list(compress(factors, masks)), table) > 0).float()
    columns = {"weight": weight, "counts": counts}
    if "value_weight" in table:  # a critic learns from all selected rows, also where `weights` masks the policy
        columns["value_weight"] = table["value_weight"] * (table.per_token(table.row_weight * trained) > 0)
    return table.replace(**columns)


def combine(factors: Sequence[Tensor], table: StepTable, floor: float = 0.0) -> Float[Tensor, " tokens"]:
    """The product of the factors for each token, without gradient. Without factors it is 1.

    Args:
        factors: each (rows,) or (tokens,).
        floor: smallest weight of a token that is not masked. Masked tokens stay 0.

    Raises: InvalidData, if a product is negative or not finite.
    """
    product = torch.ones(table.tokens, dtype=torch.float64)
    for factor in factors:
        product = product * table.per_token(factor.detach()).double()
    bad = ~product.isfinite() | (product < 0)
    if bool(bad.any()):
        token = int(bad.nonzero()[0, 0])
        raise InvalidData(
            where=f"weights of row {int(table.token_row[token])}",
            what=f"{int(bad.sum())} of {len(product)} products are negative or not finite; "
            f"the first is {float(product[token])}.",
            remedy="Every factor must be a finite number ≥ 0; 0 masks a token.",
        )
    return torch.where(product > 0, product.clamp_min(floor), 0.0).float()
