"""HAPO's group average: long answers count by their tokens, so that advantages balance over tokens.

Knows rewards, groups and numbers of tokens. Knows nothing of entropies or losses.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_range, standardize, total_return
from palaestra.data import StepTable
from palaestra.registry import Columns, Degrees, Positive, Singleton, ZeroVariance, register


@register("advantage", "hapo", uses=("group",), source="arXiv 2509.16591")
def hapo(
    table: StepTable,
    *,
    average: Literal["token", "trajectory"] = "token",
    largest: Positive | None = 5.0,
    by: Columns = ("group",),
    ddof: Degrees = 0,
    fallback_ddof: Degrees = 0,
    singleton: Singleton = "zero",
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group, mean and deviation over its tokens.

        A_i = (R_i − mean) / (deviation + 1e-6),   both over the tokens of the group, each with its trajectory's R
        A_i = GRPO's, in a group where any |A_i| ≥ largest

    The advantages of a group then sum to 0 over its tokens, which is what a loss averaged over tokens needs.

    Args:
        table: columns group, trajectory, reward, token_count, each (rows,).
        average: "trajectory" counts each trajectory once and is GRPO.
        largest: > 0, the size of an advantage that a short answer among long ones may reach. Higher: less often
            GRPO's numbers. Usual: 5; None: no bound.
        by: columns that peers agree in.
        ddof: degrees taken off the deviation. fallback_ddof: of the deviation over trajectories.
        singleton, zero_variance: as in `grpo`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories.
    Differs from the authors' code: where an advantage is too large, that divides by the sample deviation
        (`fallback_ddof=1`).

    >>> table = StepTable(group=["g"] * 2, trajectory=["a", "b"], agent=["x"] * 2, turn=[0, 0], reward=[1, 0],
    ...                   token_count=[2, 6])
    >>> [round(a, 3) for a in hapo(table).tolist()]
    [1.732, -0.577]
    """
    returns, peers = total_return(table), table.key(*by)
    plain = standardize(
        returns,
        by=peers,
        unit=table.unit("trajectory"),
        scale="std",
        ddof=ddof if average == "trajectory" else fallback_ddof,
        singleton=singleton,
        zero_variance=zero_variance,
        need_peers=True,
    )
    if average == "trajectory":
        return plain
    over_tokens = standardize(
        returns,
        by=peers,
        unit=table.unit("token"),
        scale="std",
        ddof=ddof,
        singleton=singleton,
        zero_variance=zero_variance,
    )
    alone = segment_range(table["trajectory"], by=peers) == 0  # several rows of one trajectory are no peers
    too_large = over_tokens.abs() >= (torch.inf if largest is None else largest)
    spoiled = alone | (torch.zeros(peers.size).index_add(0, peers.codes, too_large.float()) > 0)
    return torch.where(spoiled[peers.codes], plain, over_tokens)
