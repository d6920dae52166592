"""PairTable: a table of steps with pairs of trajectories, the first of which is preferred."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data.table import StepTable
from palaestra.errors import InvalidData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTable:
    """The data of learning from preferences.

    Attributes:
        table: the steps of all trajectories, one row each.
        pairs: int64 (pairs, 2), codes of the column `trajectory`: the better one, then the worse one. A trajectory may
            be in several pairs, or in none.
        weight: float32 (pairs,), how much each pair counts, ≥ 0; 1 where nothing else is known.

    Raises: InvalidData, for a code that no row has, for a pair of a trajectory with itself, for weights that are
        negative or not finite, and for another number of weights than pairs.
    """

    table: StepTable
    pairs: Int[Tensor, "pairs 2"]
    weight: Float[Tensor, " pairs"]

    def __post_init__(self) -> None:
        known = torch.isin(self.pairs, self.table["trajectory"])
        if not bool(known.all()):
            code = int(self.pairs[~known][0])
            raise InvalidData(where="PairTable", what=f"no row of the table has the trajectory code {code}.")
        same = int((self.pairs[:, 0] == self.pairs[:, 1]).sum())
        if same:
            raise InvalidData(where="PairTable", what=f"{same} of {len(self)} pairs prefer a trajectory to itself.")
        if len(self.weight) != len(self) or not bool((self.weight.isfinite() & (self.weight >= 0)).all()):
            raise InvalidData(
                where="PairTable: weight",
                what=f"{len(self.weight)} weights for {len(self)} pairs must be finite numbers ≥ 0.",
            )

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def row_pair(self) -> Int[Tensor, " rows"]:
        """The pair of each row, −1 for rows of no pair. A token batch holds it as its ids `pair`.

        Raises: InvalidData, if a trajectory is in several pairs.
        """
        codes, counts = torch.unique(self.pairs.reshape(-1), return_counts=True)
        if bool((counts > 1).any()):
            raise InvalidData(
                where="PairTable.row_pair",
                what=f"{int((counts > 1).sum())} of {len(codes)} trajectories are in several pairs.",
                remedy="Repeat such a trajectory in the table under a new name for each further pair.",
            )
        pair_of = torch.full((int(self.table["trajectory"].max()) + 1,), -1, dtype=torch.int64)
        pair_of[self.pairs] = torch.arange(len(self))[:, None].expand(-1, 2)
        return pair_of[self.table["trajectory"]]
