"""Entropy-aware advantage: a filter that lets tokens chosen under more doubt than usual count more.

Knows entropies of tokens. Knows nothing of rewards, time or how tokens were sampled.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, register


@register(
    "advantage", "entropy_aware", reads=("entropy_old",), writes=("advantage",), source="arXiv 2510.14545, public code"
)
def entropy_aware(
    table: StepTable, advantage: Float[Tensor, " units"], *, gain: NonNegative = 0.2
) -> Float[Tensor, " tokens"]:
    """Scale each token's advantage by how uncertain the policy was there, compared with the batch.

        z = (H − mean H) / std H                over the tokens of the batch that count (sample deviation)
        A' = A · max(1 + gain · z, 0)

    Args:
        table: column entropy_old (tokens,): of the distribution that the token was drawn from, as the policy has
            it before the update. It carries no gradient. NaN where the policy is not one that learns.
        advantage: (rows,) or (tokens,).
        gain: ≥ 0. Higher: uncertain tokens count more and sure ones less; 0 leaves A. Usual: 0.2.

    Returns: float32 (tokens,); 0 on padding, A where there is no entropy. Equal entropies leave A everywhere.
    Raises: MissingColumn, without entropies; InvalidData, for a negative one.
    Differs from the authors' code: a factor is never below 0, which would turn praise into blame.
    """
    spread = table.per_token(advantage)
    counts = table.row_weight[table.token_row] > 0
    entropy = table["entropy_old"].double()
    known = counts & ~entropy.isnan()
    _refuse_negative(entropy, known)
    factor = torch.ones_like(entropy)
    if int(known.sum()) > 1:
        deviation = entropy[known].std(correction=1)
        if deviation > 0:
            factor[known] = (1 + gain * (entropy[known] - entropy[known].mean()) / deviation).clamp_min(0)
    return torch.where(counts, spread.double() * factor, 0.0).float()


def _refuse_negative(entropy: Tensor, known: Tensor) -> None:
    negative = known & (entropy < 0)
    if bool(negative.any()):
        token = int(negative.nonzero()[0, 0])
        raise InvalidData(
            where=f"column `entropy_old`, token {token}",
            what=f"an entropy is negative: {float(entropy[token]):.4g}.",
            remedy="Give the entropy of the distribution over tokens, not a log-probability.",
        )
