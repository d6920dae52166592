"""Experience: from finished episodes to numbers per token, stage by stage.

    table ─► reward ─► selection ─► what the policies say now ─► advantage ─► weights

Knows bound parts and policies by protocol. Knows no method's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.advantages.pipeline import Credit, chain
from palaestra.data import Row, StepTable, Trajectory, rows_of
from palaestra.data.protocols import Samples
from palaestra.training.batches import micro_batches
from palaestra.training.build import Bound
from palaestra.weights import combine


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts between rollout and loss, in the order in which they run."""

    reward: Sequence[Bound]
    selection: Sequence[Bound]
    advantage: Sequence[Bound]
    weights: Sequence[Bound]

    @property
    def reads(self) -> frozenset[str]:
        """Columns that any of them reads."""
        return frozenset(
            c for b in (*self.reward, *self.selection, *self.advantage, *self.weights) for c in b.part.reads
        )


@dataclass(slots=True, eq=False)
class Experience:
    """One iteration's episodes, as the updates read them.

    Attributes:
        table: all columns; rows: the episodes behind its rows.
        samples: per policy name. credit: advantages. weight: (tokens,).
    """

    table: StepTable
    rows: list[Row]
    samples: dict[str, Samples] = field(default_factory=dict)
    credit: Credit | None = None
    weight: Tensor | None = None

    def of(self, policy: str) -> list[Row]:
        """Rows that this policy acted in."""
        return [row for row in self.rows if row.step.policy == policy]


def prepare(
    trajectories: Sequence[Trajectory],
    parts: Parts,
    policies: Mapping[str, Any],
    references: Mapping[str, Any],
    *,
    temperature: float,
    token_budget: int,
    proximal: bool,
) -> Experience:
    """Run every stage between rollout and loss.

    Args:
        policies: the trainable ones. references: per policy, its frozen reference, where there is one.
        proximal: recompute log-probabilities before the update (needed for more than one update).
    """
    table = StepTable.from_trajectories(trajectories)
    for reward in parts.reward:
        table = table.replace(reward=reward(table))
    for selection in parts.selection:
        table = table.replace(weight=table.weight * selection(table))
    experience = Experience(table, rows_of(trajectories))
    look = proximal or "token_proximal" in parts.reads
    _consult(experience, policies, references, temperature=temperature, budget=token_budget, proximal=look)
    experience.credit = chain(parts.advantage, experience.table)
    factors = [experience.table.weight, *(weights(experience.table) for weights in parts.weights)]
    experience.weight = combine(factors, experience.table)
    return experience


def _consult(
    experience: Experience,
    policies: Mapping[str, Any],
    references: Mapping[str, Any],
    *,
    temperature: float,
    budget: int,
    proximal: bool,
) -> None:
    """Ask policies, critics and references about the tokens, without gradient; the answers become columns."""
    table = experience.table
    columns: dict[str, Tensor] = {}

    def put(name: str, index: np.ndarray, values: Tensor, size: int) -> None:
        columns.setdefault(name, torch.full((size,), torch.nan))[torch.from_numpy(index)] = values

    for name, policy in policies.items():
        rows = experience.of(name)
        if not rows:
            continue
        samples = experience.samples[name] = policy.collate(rows, temperature=temperature)
        critic = bool(policy.has_critic)
        if proximal or critic:
            for which in micro_batches(samples.cost, range(len(samples.cost)), budget=budget):
                with torch.no_grad():
                    now = policy.forward(samples, which, values=critic, entropy=False)
                index = token_index(samples, which)
                put("token_proximal", index, now.logprob, table.tokens)
                if now.value is not None:
                    put("token_value", index, now.value, table.tokens)
                if now.end_value is not None:
                    ends = samples.end_row[which]
                    put("value_end", ends[ends >= 0], now.end_value[torch.from_numpy(ends >= 0)], len(table))
        if name in references:
            for which in micro_batches(samples.cost, range(len(samples.cost)), budget=budget):
                with torch.no_grad():
                    then = references[name].forward(samples, which, values=False, entropy=False)
                put("token_reference", token_index(samples, which), then.logprob, table.tokens)
    if "token_value" in columns:
        first = table["token_count"].cumsum(0) - table["token_count"]
        columns["value"] = columns["token_value"][first]
    experience.table = table.replace(**columns) if columns else table


def token_index(samples: Samples, which: Sequence[int]) -> np.ndarray:
    """Positions of these samples' response tokens in the table's flat order, in the order of `which`."""
    start = samples.token_start
    pieces = [samples.token_index[start[i] : start[i + 1]] for i in which]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
