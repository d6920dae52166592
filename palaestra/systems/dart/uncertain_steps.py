"""A weight that trains only on the uncertain steps of a group, where there is more to learn.

The mask is applied after advantages are computed, so that whole trajectories are compared, whichever of their steps are
trained on.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_rank
from palaestra.data import Key, StepTable
from palaestra.registry import Columns, register

Quantile = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("weights", "uncertain_steps", reads=("row_entropy",), writes=("weight", "counts"), source="arXiv 2509.23866")
def uncertain_steps(table: StepTable, *, quantile: Quantile = 0.2, by: Columns = ("group",)) -> Float[Tensor, " rows"]:
    """w = 1 on steps whose entropy is at least the group's quantile, else 0.

        H_k = mean entropy of the tokens of step k under the policy at the start of the update
        w_k = [H_k ≥ quantile of H over the steps of the group]         (linear between ranks)

    Args:
        table: columns group, row_entropy, each (rows,).
        quantile: in [0, 1). Higher: fewer, more uncertain steps. 0 keeps all. Usual: 0.2.
        by: columns whose equal values make steps a group.

    Returns: float32 (rows,); 0 on padding, except with quantile 0, which gives 1 everywhere.
    Raises: MissingColumn, without entropies.
    """
    entropy, counts = table["row_entropy"].double(), table.row_weight > 0
    if quantile == 0:
        return torch.ones(len(table))
    key = table.key(*by)
    bound = _quantile(entropy[counts], Key(key.codes[counts], key.size), quantile)
    kept = torch.zeros(len(table))
    kept[counts] = (entropy[counts] >= bound[key.codes[counts]]).float()
    return kept


def _quantile(values: Tensor, key: Key, quantile: float) -> Float[Tensor, " sets"]:
    """The quantile of each set, linear between ranks: float64 (sets,); 0 for empty sets."""
    rank, size = segment_rank(values, by=key), torch.bincount(key.codes, minlength=key.size)
    place = quantile * (size - 1).clamp_min(0).double()
    below = place.floor().long()
    share = place - below
    low, high = torch.zeros(key.size, dtype=torch.float64), torch.zeros(key.size, dtype=torch.float64)
    at_low, at_high = rank == below[key.codes], rank == torch.minimum(below + 1, (size - 1).clamp_min(0))[key.codes]
    low[key.codes[at_low]], high[key.codes[at_high]] = values[at_low], values[at_high]
    return low + share * (high - low)
