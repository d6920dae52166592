"""An advantage filter that scales each token's advantage by the policy's entropy at that token."""

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
    """Scale each token's advantage by its entropy, standardized over the batch.

        z = (H − mean H) / std H                over the tokens of the batch that count (sample deviation)
        A' = A · max(1 + gain · z, 0)

    Args:
        table: column entropy_old (tokens,): entropy of the old policy's distribution at this token, without gradient.
            NaN where another policy acted.
        advantage: (rows,) or (tokens,).
        gain: ≥ 0. Higher: tokens with high entropy count more and tokens with low entropy less; 0 leaves A. Usual: 0.2.

    Returns: float32 (tokens,); 0 on padding, A where there is no entropy. If all entropies are equal, A everywhere.
    Raises: MissingColumn, without entropies; InvalidData, for a negative one.
    Differs from the authors' code: a factor is never below 0, which would reverse the sign of an advantage.
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
