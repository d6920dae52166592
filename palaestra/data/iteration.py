"""What one iteration is: the iteration itself, for parts that name it, and the batch that it learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.data.batches import micro_batches, token_index
from palaestra.data.protocols import Samples
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.data.table import Row, StepTable, tokens_of
from palaestra.data.trajectory import Trajectory
from palaestra.errors import ContractError


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """The episodes of one iteration. The experience gives them, the stages fill in the table.

    Attributes:
        kept: what the update learns from. played: all that was spent for it, kept or not; of files, nothing.
        metrics: what the experience and the parts say.
    """

    kept: Sequence[Trajectory]
    played: Sequence[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)
    _table: StepTable | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], table: StepTable | None = None) -> Batch:
        """A batch of these episodes, all of which are learned from."""
        return cls(kept=trajectories, played=trajectories, _table=table)

    @property
    def table(self) -> StepTable:
        """All columns; after the stages among them `weight` and `counts` of tokens, and `advantage` where it is read.

        Raises: ContractError, before there is one.
        """
        if self._table is None:
            raise ContractError(where="Batch.table", what="the batch is not prepared yet.", remedy="Call `prepare`.")
        return self._table

    @table.setter
    def table(self, table: StepTable) -> None:
        self._table = table


@dataclass(slots=True, eq=False)
class Iteration:
    """One iteration, for every part that takes a data parameter of the name `iteration`.

    Attributes:
        policies: the trainable policies by name.
        number: of the iteration, from 0. seed: of this iteration; derive from it whatever is random.
        temperature: of the rollout. token_budget: tokens a model should read at once.
        rows: the steps behind the table's rows, in its order.
        temperatures: of policies whose roles have their own.
        references: per policy, its frozen reference, where it has one.
        ranks: the processes that work on the run.
        metrics: a part adds what it wants logged, `iteration.metrics["judge/wrong"] = 0.1`.
    """

    policies: Mapping[str, Any]
    number: int
    seed: int
    temperature: float
    token_budget: int
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
        """The policy's rows, collated once."""
        if policy not in self.collated:
            own = [row for row in self.rows if row.step.policy == policy]
            temperature = self.temperatures.get(policy, self.temperature)
            self.collated[policy] = self.policies[policy].collate(own, temperature=temperature)
        return self.collated[policy]

    def batches(self, policy: str) -> Iterator[tuple[list[int], Tensor]]:
        """The policy's samples in cuts of at most `token_budget`, each with the places of its tokens in the table."""
        samples = self.samples(policy)
        for which in micro_batches(samples.cost, range(len(samples.cost)), budget=self.token_budget):
            yield which, torch.from_numpy(token_index(samples, which))

    def logprob(self, model: Any, policy: str) -> Tensor:
        """Log-probabilities of the tokens that `policy` took, under `model`: (tokens,), NaN elsewhere.

        Args:
            model: the policy or another one of its kind (a copy with weights of its own).

        Returns: without gradient, on the CPU.
        """
        out = torch.full((tokens_of(self.rows),), torch.nan)
        for which, places in self.batches(policy):
            with torch.no_grad():
                now = model.forward(self.samples(policy), which, ("logprob",))
            out[places] = now["logprob"].cpu()
        return out
