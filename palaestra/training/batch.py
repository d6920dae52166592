"""Batch: the episodes of one iteration, and what is made of them until the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from palaestra.data import Row, StepTable, Trajectory
from palaestra.data.protocols import Samples
from palaestra.errors import ContractError


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """The episodes of one iteration. The collector gives them, `prepare` fills in the rest.

    Attributes:
        kept: what the update learns from. played: all that was spent for it, kept or not.
        metrics: what strategies, the collector and the parts say.
        rows: the steps behind the table's rows, in its order. samples: per policy, what its model reads.
    """

    kept: Sequence[Trajectory]
    played: Sequence[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    samples: dict[str, Samples] = field(default_factory=dict)
    _table: StepTable | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Batch:
        """A batch of these episodes, all of which are learned from."""
        return cls(kept=trajectories, played=trajectories)

    @property
    def table(self) -> StepTable:
        """All columns, after `prepare` among them `advantage`, `weight` and `counts` of tokens.

        Raises: ContractError, before there is one.
        """
        if self._table is None:
            raise ContractError(where="Batch.table", what="the batch is not prepared yet.", remedy="Call `prepare`.")
        return self._table

    @table.setter
    def table(self, table: StepTable) -> None:
        self._table = table

    @property
    def has_signal(self) -> bool:
        """Whether a token that counts, of a policy that is trained, has an advantage other than 0."""
        moves = (self.table["counts"] > 0) & (self.table["advantage"] != 0)
        return any(bool(moves[torch.from_numpy(one.token_index)].any()) for one in self.samples.values())
