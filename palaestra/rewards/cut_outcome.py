"""An outcome for episodes that a limit of ours cut off before the environment told one.

Knows outcomes and cuts. Knows nothing of which limit it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.registry import register


@register("reward", "cut_outcome", reads=("outcome", "truncated"))
def cut_outcome(table: StepTable, *, value: float = 0.0) -> dict[str, Tensor]:
    """Where a trajectory was cut off and has no outcome, its outcome is `value`.

    An environment judges an episode at its own end. Where a limit of the rollout comes first there is no outcome, and
    parts that read outcomes refuse such rows. This part stands before them; rewards and values stay as they are.

    Args:
        table: columns outcome, truncated (rows,).
        value: what an unfinished episode is worth. Usual: 0, a failure.

    Returns: `outcome`, float32 (rows,).
    """
    key = table.key("trajectory")
    cut = torch.zeros(key.size, dtype=torch.bool)
    cut[key.codes[table["truncated"] & (table.weight > 0)]] = True
    missing = table["outcome"].isnan() & cut[key.codes]
    return {"outcome": torch.where(missing, torch.as_tensor(value), table["outcome"])}
