"""Iteration: what a part may know of the present iteration. Batch: the episodes that the iteration learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.data.batches import micro_batches_of, token_index
from palaestra.data.protocols.policy import Samples
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.data.table import Row, StepTable, tokens_of
from palaestra.data.trajectory import Trajectory
from palaestra.errors import ContractError


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """The episodes of one iteration. The experience gives the episodes, and the stages fill in the table.

    Attributes:
        kept: the episodes that the update learns from. played: all episodes that were played for this iteration, kept
            or not; empty if the experience reads files.
        metrics: numbers for the log, from the experience and the parts.
    """

    kept: Sequence[Trajectory]
    played: Sequence[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)
    _table: StepTable | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], table: StepTable | None = None) -> Batch:
        """A batch in which all of these episodes are both kept and played."""
        return cls(kept=trajectories, played=trajectories, _table=table)

    @property
    def table(self) -> StepTable:
        """The table with all columns. The stages add `weight` and `counts` of tokens, and `advantage` if it is read.

        Raises: ContractError, if the stages have not made the table yet.
        """
        if self._table is None:
            raise ContractError(where="Batch.table", what="the batch has no table yet.", remedy="Call `prepare`.")
        return self._table

    @table.setter
    def table(self, table: StepTable) -> None:
        self._table = table


@dataclass(slots=True, eq=False)
class Iteration:
    """The present iteration, given to every part that has a data parameter called `iteration`.

    Attributes:
        policies: the trainable policies by name.
        number: of the iteration, from 0.
        seed: of this iteration. A part derives all its random draws from it, and has no option `seed`.
        temperature: of the rollout. token_budget: the most tokens that a model should read at once.
        rows: the steps behind the table's rows, in the order of the table.
        collated: the samples that `samples` has made, by policy.
        temperatures: by policy, for those whose roles have a temperature of their own.
        references: by policy, its frozen reference, if it has one.
        ranks: the processes that work on the run.
        metrics: numbers for the log. A part adds its own: `iteration.metrics["judge/wrong"] = 0.1`.
    """

    policies: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    seed: int = 0
    temperature: float = 1.0
    token_budget: int = 1024
    rows: Sequence[Row] = ()
    collated: dict[str, Samples] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)
    references: Mapping[str, Any] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=OneProcess)
    metrics: dict[str, float] = field(default_factory=dict)

    def acted(self, policy: str) -> bool:
        """Whether the policy acted in any of the rows."""
        return any(row.step.policy == policy for row in self.rows)

    def samples(self, policy: str) -> Samples:
        """The policy's rows as samples. They are collated at the first call and kept."""
        if policy not in self.collated:
            own = [row for row in self.rows if row.step.policy == policy]
            temperature = self.temperatures.get(policy, self.temperature)
            self.collated[policy] = self.policies[policy].collate(own, temperature=temperature)
        return self.collated[policy]

    def batches(self, policy: str) -> Iterator[tuple[list[int], Tensor]]:
        """Batches of the policy's samples of at most `token_budget`, each with its tokens' positions in the table."""
        samples = self.samples(policy)
        for which in micro_batches_of(samples, range(len(samples.cost)), budget=self.token_budget):
            yield which, torch.from_numpy(token_index(samples, which))

    def logprob(self, model: Any, policy: str) -> Tensor:
        """Log-probabilities of the tokens that `policy` took, under `model`: (tokens,), NaN elsewhere.

        Args:
            model: the policy, or a copy of it with other weights.

        Returns: without gradient, on the CPU.
        """
        out = torch.full((tokens_of(self.rows),), torch.nan)
        for which, places in self.batches(policy):
            with torch.no_grad():
                now = model.forward(self.samples(policy), which, ("logprob",))
            out[places] = now["logprob"].cpu()
        return out
