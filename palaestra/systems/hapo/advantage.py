"""HAPO's advantage: the return standardized with a mean and a deviation over the tokens of the group."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_range, total_return
from palaestra.data import StepTable
from palaestra.registry import Degrees, Positive, register
from palaestra.registry.clashes import Clash, SettingPattern


@register(
    "advantage",
    "hapo",
    reads=(),
    writes=("advantage",),
    uses=("group",),
    first=("average", "largest", "by", "ddof"),
    source="arXiv 2509.16591",
    clashes=(
        Clash(
            options={"average": ("token",)},
            other=SettingPattern(key="aggregate.how", values=("sequence-mean", "step-mean", "trajectory-step-mean")),
            why="Its advantages sum to 0 over a group's tokens; an average over a trajectory's own tokens would change "
            "that.",
            ways="Set aggregate.how=token-mean, or advantage.hapo.average=trajectory.",
        ),
    ),
)
def hapo(
    table: StepTable,
    *,
    average: Literal["token", "trajectory"] = "token",
    largest: Positive | None = 5.0,
    fallback_ddof: Degrees = 0,
    peers: Peers = Peers(ddof=0, fixed=("unit",)),
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group, with mean and deviation over the group's tokens.

        A_i = (R_i − mean) / (deviation + 1e-6),   both over the tokens of the group, each with its trajectory's R
        A_i = GRPO's, in a group where any |A_i| ≥ largest

    The advantages of a group then sum to 0 over its tokens, which is what a loss averaged over tokens needs.

    Args:
        table: columns group, trajectory, reward, token_count, each (rows,).
        average: "token" counts each trajectory once for each of its tokens; "trajectory" counts it once and is GRPO.
        largest: > 0. A group with an advantage of at least this size gets GRPO's advantages; a short answer among long
            ones can reach it. Higher: fewer groups get them. Usual: 5; None: no bound.
        fallback_ddof: degrees of freedom subtracted in the deviation over trajectories, in groups that get GRPO's
            advantages.
        peers: by, ddof, singleton and zero_variance of `Peers`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories.
    Differs from the authors' code: where an advantage is too large, that code divides by the sample deviation
        (`fallback_ddof=1`).

    >>> table = StepTable(group=["g"] * 2, trajectory=["a", "b"], agent=["x"] * 2, turn=[0, 0], reward=[1, 0],
    ...                   token_count=[2, 6])
    >>> [round(a, 3) for a in hapo(table).tolist()]
    [1.732, -0.577]
    """
    returns, key = total_return(table), table.key(*peers.by)
    if average == "trajectory":
        return peers.standardize(returns, table, scale="std")
    plain = replace(peers, ddof=fallback_ddof).standardize(returns, table, scale="std")
    over_tokens = peers.standardize(returns, table, unit=table.unit("token"), scale="std")
    alone = segment_range(table["trajectory"], by=key) == 0  # rows of one trajectory are not peers of each other
    too_large = over_tokens.abs() >= (torch.inf if largest is None else largest)
    spoiled = alone | (torch.zeros(key.size).index_add(0, key.codes, too_large.float()) > 0)
    return torch.where(spoiled[key.codes], plain, over_tokens)
