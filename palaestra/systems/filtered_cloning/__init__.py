"""Filtered behavior cloning imitates the policy's own episodes whose outcome is above a threshold and ignores the
others. It is a simple baseline that methods with credit assignment should beat; for language models it is known as
rejection-sampling fine-tuning. Every step of a chosen episode has the advantage 1 and every other step 0, so that the
loss `reinforce` becomes maximum likelihood on the chosen episodes. It has no baseline, clip or reference policy, and
it cannot learn from failures. It follows no single paper; the studies of ArCHer (arXiv 2402.19446) use it as an arm.
This file is the estimator; the loss is in `palaestra/parts/losses.py`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import register


@register(
    "advantage",
    "filtered",
    reads=("outcome", "truncated?"),
    writes=("advantage",),
    source="maximum likelihood on chosen episodes",
)
def filtered(table: StepTable, *, threshold: float = 0.5) -> Float[Tensor, " rows"]:
    """Give every step of an episode the advantage 1 if the episode's outcome is above a threshold, else 0.

        A = 1 if outcome > threshold, else 0

    With the loss `reinforce` this is maximum likelihood on the chosen episodes.

    Args:
        table: columns outcome (rows,). An episode that a limit cut off unjudged is never chosen.
        threshold: outcome that a chosen episode must exceed. Higher: fewer, better examples. Usual: 0.5 for success
            0/1.

    Returns: float32 (rows,).
    Raises: InvalidData, if a row that counts has no outcome.
    """
    counts, outcome = table.row_weight > 0, outcomes_of(table, cut=-math.inf)
    if bool(outcome[counts].isnan().any()):
        raise InvalidData(
            where="column `outcome`",
            what="an episode has no outcome, so that it cannot be compared with the threshold.",
            remedy='Let the environment give `info["success"]` at the end of each episode.',
        )
    return torch.where(counts, (outcome > threshold).float(), 0.0)
