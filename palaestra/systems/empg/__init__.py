"""EMPG (arXiv 2509.09265) starts from a property of softmax policies: the expected gradient grows with the entropy,
so uncertain steps move the weights most. It rescales the advantage of any estimator. Confident steps count more and
uncertain ones less, with a mean factor of 1 over the batch. A bonus rewards a step whose next step has low entropy,
and the mean over all steps is subtracted at the end. Here entropies are scaled over the steps of the batch; a public
re-implementation scales them over tokens and their padding. The coefficients are those that an independent study
reports. This file is the filter; it follows an estimator, in `method.yaml` `grpo` from
`palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, NonNegative, register

SMALL = 1e-8  # added to the range of entropies


@register("advantage", "empg", reads=("row_entropy",), writes=("advantage",), source="arXiv 2509.09265")
def empg(
    table: StepTable,
    advantage: Float[Tensor, " units"],
    *,
    gain: NonNegative = 1.0,
    clarity: NonNegative = 1.0,
    bonus: NonNegative = 0.05,
    chain: Columns = ("trajectory",),
) -> Float[Tensor, " units"]:
    """Scale an advantage by the policy's certainty, and reward steps whose next step has low entropy.

        H̃ = (H − min H) / (max H − min H + 1e-8)                               over the rows of the batch
        A' = A · exp(−gain · H̃) / mean of exp(−gain · H̃) + bonus · exp(−clarity · H̃ of the next row)
        result = A' − mean of A' over the rows

    The mean factor is 1. A trajectory's last row gets no bonus. For a softmax policy the expected gradient of log π
    grows with its entropy, so that without the factor uncertain steps change the weights most.

    Args:
        table: columns trajectory, turn, row_entropy (rows,): the mean token entropy of each step under the policy that
            acted. It carries no gradient.
        advantage: (rows,), or (tokens,); a token gets the factor and the bonus of its row.
        gain: ≥ 0 (k₁ of the paper). Higher: uncertain steps count less; 0 leaves A. Usual: 1.
        clarity: ≥ 0 (k₂). Higher: only next steps of very low entropy earn the bonus. Usual: 1.
        bonus: ≥ 0 (ζ). Higher: the policy seeks states in which it is certain. Usual: 0.05; 0 is none.
        chain: columns whose equal values make rows a sequence in time.

    Returns: float32, with the shape of `advantage`; 0 on padding.
    Raises: MissingColumn, without entropies; InvalidData, for a negative one or if every row has weight 0.
    Differs from a public re-implementation: entropies are scaled over steps, not over tokens and their padding.
    """
    counts = table.row_weight > 0
    entropy = _checked(table, counts)
    low, high = entropy[counts].aminmax()
    level = torch.where(counts, (entropy - low) / (high - low + SMALL), 0.0)
    sharp = torch.exp(-gain * level)
    factor = sharp / sharp[counts].mean()
    order, last = table.timeline(*chain)
    following = torch.cat([order[1:], order[:1]])
    extra = torch.zeros_like(level)
    extra[order] = torch.where(last, 0.0, bonus * torch.exp(-clarity * level[following]))
    row = torch.arange(len(table)) if len(advantage) == len(table) else table.token_row
    changed = modulate(advantage, factor=factor[row], bonus=extra[row]).double()
    share = (counts.double() / counts.sum() / torch.bincount(row, minlength=len(table)))[row]  # each row once
    return torch.where(counts[row], changed - (share * changed).sum(), 0.0).float()


def _checked(table: StepTable, counts: Tensor) -> Tensor:
    entropy = table["row_entropy"].double()
    if not bool(counts.any()):
        raise InvalidData(
            where="advantage: empg",
            what="every row has weight 0.",
            remedy="Let `selection` keep at least one row.",
        )
    negative = (entropy < 0) & counts
    if bool(negative.any()):
        row = int(negative.nonzero()[0, 0])
        raise InvalidData(
            where=f"column `row_entropy`, row {row}",
            what=f"an entropy is negative: {float(entropy[row]):.4g}.",
            remedy="Give the entropy of the distribution over tokens, not a log-probability.",
        )
    return entropy


def modulate(
    values: Float[Tensor, " units"], *, factor: Tensor | float = 1.0, bonus: Tensor | float = 0.0
) -> Float[Tensor, " units"]:
    """factor · values + bonus, elementwise."""
    return (values.double() * factor + bonus).float()
