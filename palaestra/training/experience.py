"""Experience: from finished episodes to numbers per token, stage by stage.

    episodes ─► table ─► reward ─► selection ─► what the policies say now ─► advantage ─► weights ─► what parts learn

Knows bound parts and policies by protocol. Knows no method's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Iteration, Row, StepTable, Trajectory, rows_of
from palaestra.data.batches import micro_batches, token_index
from palaestra.data.protocols import Samples
from palaestra.training.bound import Bound
from palaestra.training.credit import Credit, chain
from palaestra.training.factors import combine


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts between rollout and loss, in the order in which they run."""

    reward: Sequence[Bound]
    selection: Sequence[Bound]
    advantage: Sequence[Bound]
    weights: Sequence[Bound]
    updates: Sequence[Bound] = ()  # losses and regularizers, which read columns too
    frozen: Callable[[str], bool] = lambda agent: False  # whose acts nothing is learned from

    @property
    def all(self) -> tuple[Bound, ...]:
        """Every part, in the order in which they run."""
        return (*self.reward, *self.selection, *self.advantage, *self.weights)

    @property
    def reads(self) -> frozenset[str]:
        """Columns that any of them reads."""
        return frozenset(c for b in self.all for c in b.part.reads)

    @property
    def stateful(self) -> dict[str, Any]:
        """The objects of parts with state, by slot and place: `reward.0`."""
        slots = ("reward", "selection", "advantage", "weights")
        return {
            f"{slot}.{place}": bound.held
            for slot in slots
            for place, bound in enumerate(getattr(self, slot))
            if bound.held is not None
        }

    @property
    def warming(self) -> bool:
        """Whether a part wants no update yet."""
        return any(getattr(held, "warming", False) for held in self.stateful.values())


@dataclass(slots=True, eq=False)
class Experience:
    """One iteration's episodes, as the updates read them.

    Attributes:
        table: all columns; rows: the episodes behind its rows.
        samples: per policy name. credit: advantages. weight: (tokens,).
        counted: (tokens,), the weight without what parts reject: tokens that count in denominators.
        trained: (rows,), 0 on rows of frozen roles, which neither policies nor critics learn from; None: all are 1.
        learned: metrics of parts that learned from it.
    """

    table: StepTable
    rows: list[Row]
    samples: dict[str, Samples] = field(default_factory=dict)
    credit: Credit | None = None
    weight: Tensor | None = None
    counted: Tensor | None = None
    trained: Tensor | None = None
    learned: dict[str, float] = field(default_factory=dict)

    def of(self, policy: str) -> list[Row]:
        """Rows that this policy acted in."""
        return [row for row in self.rows if row.step.policy == policy]

    @property
    def has_signal(self) -> bool:
        """Whether a token that counts, of a policy that is trained, has an advantage other than 0."""
        counted = self.weight if self.counted is None else self.counted
        assert self.credit is not None and counted is not None
        moves = (counted > 0) & (self.credit.advantage != 0)
        return any(bool(moves[torch.from_numpy(one.token_index)].any()) for one in self.samples.values())


def prepare(
    trajectories: Sequence[Trajectory],
    parts: Parts,
    iteration: Iteration,
    references: Mapping[str, Any],
    *,
    proximal: bool,
    strict: bool = False,
) -> Experience:
    """Run every stage between rollout and loss.

    Args:
        iteration: its rows are filled in here.
        references: per policy, its frozen reference, where there is one.
        proximal: recompute log-probabilities before the update (needed for more than one update).
        strict: refuse rows that occur twice without a column `weight`.
    """
    for bound in parts.all:
        if (choose := bound.can("choose")) is not None:
            trajectories = choose(list(trajectories), iteration)
    iteration.rows = rows_of(trajectories)
    table = StepTable.from_trajectories(trajectories)
    if strict:
        table.refuse_duplicates()
    for reward in parts.reward:
        found = reward.at(iteration)(table)
        table = table.replace(**(found if isinstance(found, Mapping) else {"reward": found}))
    for selection in parts.selection:
        table = table.replace(weight=table.weight * selection.at(iteration)(table))
    experience = Experience(table, iteration.rows)
    recompute = proximal or "token_proximal" in parts.reads
    read = parts.reads.union(*(bound.part.reads for bound in parts.updates))
    entropy = bool({"entropy", "token_entropy"} & read)
    _consult(experience, iteration, references, proximal=recompute, entropy=entropy)
    table = experience.table
    experience.credit = chain([bound.at(iteration) for bound in parts.advantage], table)
    experience.trained = learned_from(table, parts.frozen)
    factors = [table.weight * experience.trained, *(weights.at(iteration)(table) for weights in parts.weights)]
    experience.weight = combine(factors, table)
    keep = [True, *("rejection" not in weights.part.uses for weights in parts.weights)]
    experience.counted = combine(list(compress(factors, keep)), table)
    for bound in parts.all:
        if (learn := bound.can("learn")) is not None:
            experience.learned |= learn(table, iteration)
    return experience


def learned_from(table: StepTable, frozen: Callable[[str], bool]) -> Tensor:
    """1 on rows that the updates may read, 0 on those of frozen roles: float32 (rows,)."""
    agents = torch.tensor([0.0 if frozen(str(label)) else 1.0 for label in table.labels("agent")])
    return agents[table["agent"]]


def _consult(
    experience: Experience, iteration: Iteration, references: Mapping[str, Any], *, proximal: bool, entropy: bool
) -> None:
    """Ask policies, critics and references about the tokens, without gradient; the answers become columns."""
    table = experience.table
    columns: dict[str, Tensor] = {}

    def put(name: str, index: np.ndarray, values: Tensor, size: int) -> None:
        columns.setdefault(name, torch.full((size,), torch.nan))[torch.from_numpy(index)] = values.cpu()

    for name, policy in iteration.policies.items():
        if not experience.of(name):
            continue
        samples = experience.samples[name] = iteration.samples(name)
        critic = bool(policy.has_critic)
        if proximal or critic or entropy:
            for which in micro_batches(samples.cost, range(len(samples.cost)), budget=iteration.token_budget):
                with torch.no_grad():
                    now = policy.forward(samples, which, values=critic, entropy=entropy)
                index = token_index(samples, which)
                put("token_proximal", index, now.logprob, table.tokens)
                if now.value is not None:
                    put("token_value", index, now.value, table.tokens)
                if now.entropy is not None:
                    put("token_entropy", index, now.entropy, table.tokens)
                if now.end_value is not None:
                    ends = samples.end_row[which]
                    put("value_end", ends[ends >= 0], now.end_value.cpu()[torch.from_numpy(ends >= 0)], len(table))
        if name in references:
            then = iteration.logprob(references[name], name)
            put("token_reference", np.flatnonzero(~then.isnan().numpy()), then[~then.isnan()], table.tokens)
    if "anchored" in table:  # replayed rows that are clipped around what sampled them
        own = table["anchored"][table.token_row] > 0
        recomputed = columns.get("token_proximal", torch.full((table.tokens,), torch.nan))
        columns["token_proximal"] = torch.where(own, table["token_logprob"], recomputed)
    if "token_value" in columns:
        first = table["token_count"].cumsum(0) - table["token_count"]
        columns["value"] = columns["token_value"][first]
        _end_values(table, columns)
    if "token_entropy" in columns:
        total = torch.zeros(len(table)).index_add_(0, table.token_row, columns["token_entropy"].nan_to_num())
        columns["entropy"] = total / table["token_count"]
    experience.table = table.replace(**columns) if columns else table


def _end_values(table: StepTable, columns: dict[str, Tensor]) -> None:
    """Who was cut off before being shown anything more stands where it stood: the value of its last token."""
    if "truncated" not in table:
        return
    found = columns.setdefault("value_end", torch.full((len(table),), torch.nan))
    latest = columns["token_value"][table["token_count"].cumsum(0) - 1]
    columns["value_end"] = torch.where(table["truncated"] & found.isnan(), latest, found)
