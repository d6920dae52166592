"""A soft price for long responses: none up to a margin before the limit, then rising to 1 at the limit.

Knows how many tokens each step has. Knows nothing of which limit cut an episode off.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Key, StepTable, segment_sum
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, PositiveInt, register


@register("reward", "overlong", source="arXiv 2503.14476")
def overlong(
    table: StepTable, *, maximum: PositiveInt = 20480, buffer: PositiveInt = 4096, factor: NonNegative = 1.0
) -> dict[str, Float[Tensor, " rows"]]:
    """reward + factor · p(L) on the last row of a trajectory with L response tokens.

        p(L) = 0                            L ≤ maximum − buffer
               (maximum − buffer − L) / buffer    up to L = maximum
               −1                           beyond

    Args:
        table: columns trajectory, turn, reward, token_count, each (rows,). A network policy has one token a step.
        maximum: tokens of a trajectory from which on the price is full. Usual: the generation budget of an episode.
        buffer: tokens before `maximum` over which the price rises. Higher: a gentler slope. Usual: a fifth of it.
        factor: ≥ 0. Higher: shorter responses. Usual: 1 beside rewards of ±1, so 0.5 beside 0 and 1; 0 is no price.

    Returns: "reward" (rows,), and "overlong" (rows,): factor · p(L), 0 on rows that are not the last.
    Raises: RecipeError, if the buffer exceeds the maximum.
    """
    if buffer > maximum:
        raise RecipeError(
            where="reward: overlong",
            what=f"`buffer: {buffer}` exceeds `maximum: {maximum}`, so that every response would be too long.",
            remedy="Give `maximum`, the tokens that an episode may have, and a buffer of about a fifth of it.",
        )
    counts, key = table.weight > 0, table.key("trajectory")
    length = segment_sum(table["token_count"], by=Key(key.codes, key.size, (), counts.double()))
    price = ((maximum - buffer - length) / buffer).clamp(-1.0, 0.0)
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last) & counts
    added = torch.where(ends, factor * price[key.codes], 0.0).float()
    return {"reward": table["reward"] + added, "overlong": added}
