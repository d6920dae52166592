"""From finished episodes to numbers per token, stage by stage.

episodes ─► table ─► reward ─► selection ─► what the policies say now ─► advantage ─► weights ─► what parts learn
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from palaestra.bound import BoundPart
from palaestra.data import Iteration, StepTable, rows_of
from palaestra.data.protocols import StatefulPart, complete
from palaestra.errors import ContractError
from palaestra.training.batch import Batch
from palaestra.training.credit import assign_credit
from palaestra.training.factors import combine
from palaestra.training.passes import fill_columns, plan_passes, reader

FORMER_MEMBERS = {"warming": "`ready` now, and means the opposite"}  # of parts with state


def started(parts: Sequence[BoundPart]) -> list[BoundPart]:
    """The parts as a run holds them, those with state with an object each.

    Raises: ContractError, for an object that lacks a member of `StatefulPart` or has one by its earlier name.
    """
    held = [part.started() for part in parts]
    for part in held:
        where = f"{part.part.slot}: {part.name}"
        for former, now in FORMER_MEMBERS.items():
            if part.can(former) is not None:
                raise ContractError(where=where, what=f"its attribute `{former}` is called {now}.", remedy="Rename it.")
        if part.state is not None:
            complete(part.state, StatefulPart, where=where)
    return held


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts between rollout and loss, in the order in which they run."""

    reward: Sequence[BoundPart]
    selection: Sequence[BoundPart]
    advantage: Sequence[BoundPart]
    weights: Sequence[BoundPart]
    updates: Mapping[str, Sequence[BoundPart]] = field(default_factory=dict)  # per policy, its loss and regularizers
    frozen: Callable[[str], bool] = lambda agent: False  # whose acts nothing is learned from

    @property
    def all(self) -> tuple[BoundPart, ...]:
        """Every part, in the order in which they run."""
        return (*self.reward, *self.selection, *self.advantage, *self.weights)

    @property
    def stateful(self) -> dict[str, StatefulPart]:
        """The objects of parts with state, by slot and place: `reward.0`."""
        slots = ("reward", "selection", "advantage", "weights")
        return {
            f"{slot}.{place}": bound.state
            for slot in slots
            for place, bound in enumerate(getattr(self, slot))
            if bound.state is not None
        }

    @property
    def ready(self) -> bool:
        """Whether every part wants an update."""
        return all(held.ready for held in self.stateful.values())


def prepare(
    batch: Batch,
    parts: Parts,
    iteration: Iteration,
    references: Mapping[str, Any],
    *,
    several_updates: bool,
    strict: bool = False,
) -> Batch:
    """Run every stage between rollout and loss on the trajectories that the batch keeps, and fill the batch in.

    Args:
        iteration: its rows are filled in here.
        references: per policy, its frozen reference, where there is one.
        several_updates: whether the iteration makes several updates, or learns from episodes of older weights.
        strict: refuse rows that occur twice without a column `row_weight`.
    """
    trajectories = batch.kept
    for held in parts.stateful.values():
        trajectories = held.choose(list(trajectories), iteration)
    iteration.rows = rows_of(trajectories)
    table = StepTable.from_trajectories(trajectories)
    if strict:
        table.refuse_duplicates()
    for reward in parts.reward:
        found = reward.at(iteration)(table)
        table = table.replace(**(found if isinstance(found, Mapping) else {"reward": found}))
    for selection in parts.selection:
        table = table.replace(row_weight=table.row_weight * selection.at(iteration)(table))
    trained = learned_from(table, parts.frozen)
    plans = {
        name: plan_passes(
            map(reader, parts.all),
            map(reader, parts.updates.get(name, ())),
            gives=policy.outputs,
            several_updates=several_updates,
        )
        for name, policy in iteration.policies.items()
    }
    table = fill_columns(table, iteration, plans, references, trained=trained)
    table = assign_credit([bound.at(iteration) for bound in parts.advantage], table)
    table = _weigh(table, parts.weights, iteration, trained)
    batch.table, batch.rows = table, list(iteration.rows)
    batch.samples = {name: iteration.samples(name) for name in iteration.policies if iteration.acted(name)}
    batch.metrics |= iteration.metrics
    for held in parts.stateful.values():
        batch.metrics |= held.learn(table, iteration)
    return batch


def _weigh(table: StepTable, weights: Sequence[BoundPart], iteration: Iteration, trained: Tensor) -> StepTable:
    """The table with `weight`, the product of all factors of a token, and `counts`, 1 where it is in denominators."""
    factors = [table.row_weight * trained, *(part.at(iteration)(table) for part in weights)]
    masks = [True, *(part.part.writes is None or "counts" in part.part.writes for part in weights)]
    weight = combine(factors, table)
    counts = (combine(list(compress(factors, masks)), table) > 0).float()
    columns = {"weight": weight, "counts": counts}
    if "value_weight" in table:  # a critic learns from what is selected, whatever the policy's weights are
        columns["value_weight"] = table["value_weight"] * (table.per_token(table.row_weight * trained) > 0)
    return table.replace(**columns)


def learned_from(table: StepTable, frozen: Callable[[str], bool]) -> Tensor:
    """1 on rows that the updates may read, 0 on those of frozen roles: float32 (rows,)."""
    agents = torch.tensor([0.0 if frozen(str(label)) else 1.0 for label in table.labels("agent")])
    return agents[table["agent"]]
