"""The product of all weights. Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData


def combine(factors: Sequence[Tensor], table: StepTable, floor: float = 0.0) -> Float[Tensor, " tokens"]:
    """The product of the factors per token, constant for the gradient; no factor gives ones.

    Args:
        factors: each (rows,) or (tokens,).
        floor: least weight of a token that is not masked; masked tokens stay 0.

    Raises: InvalidData, if a product is negative or not finite.
    """
    product = torch.ones(table.tokens, dtype=torch.float64)
    for factor in factors:
        product = product * table.per_token(factor.detach()).double()
    bad = ~product.isfinite() | (product < 0)
    if bool(bad.any()):
        token = int(bad.nonzero()[0, 0])
        raise InvalidData(
            where=f"weights of row {int(table.token_row[token])}",
            what=f"{int(bad.sum())} of {len(product)} products are negative or not finite; "
            f"the first is {float(product[token])}.",
            remedy="Every factor must be a finite number ≥ 0; 0 masks a token.",
        )
    return torch.where(product > 0, product.clamp_min(floor), 0.0).float()
