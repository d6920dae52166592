"""Counterfactual credit addresses teams that share one reward, which does not show which role earned it. An act is paid
the difference between the team's return with it and the return when the role acts otherwise. This is common practice
(difference rewards, counterfactual baselines) and follows no single paper; no critic is learned. The default compares
an act with other acts of the same role in the same state, taken from the other episodes of the group. The overlay
`counterfactual_replay.yaml` plays each episode again with a default action in place of the role's acts; this needs a
deterministic environment.

This file is the reward. `replayed.py` is the program that plays episodes again.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_mean, segment_sum, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, Fraction, register

PLACE = "reward: counterfactual"


@register(
    "reward",
    "counterfactual",
    reads=(),
    reads_if={
        "against=all": ("state_key?", "action_key?"),
        "against=others": ("state_key?", "action_key?"),
        "against=replay": ("without?",),
    },
    writes=("reward",),
    uses=("group",),
    source="common practice",
)
def counterfactual(
    table: StepTable,
    *,
    against: Literal["all", "others", "replay"] = "all",
    by: Columns = ("group", "agent", "state_key"),
    acts: Columns = ("action_key",),
    share: Fraction = 1.0,
) -> Float[Tensor, " rows"]:
    """Pay an act the difference that it made to the team's return R, in place of, or beside, its own reward.

        "all"     C = mean of R over the peers that acted like this − mean of R over all peers
        "others"  C = mean of R over the peers that acted like this − mean of R over those that acted otherwise
        "replay"  C = R − R without the role, on the role's last step of the episode
        r ← share · C + (1 − share) · r

    Peers are acts of one role in the same state, from the episodes of the group. Their mean returns estimate the
    returns that each act would have led to. "all" is the value of the act minus the expected value of the role's acts
    in this state; its gradient is that of R, times (n − 1) / n for n peers. "others" is that divided by the share of
    peers that acted otherwise: rare acts change as much as frequent ones, but with more than two different acts it is
    not the gradient of R. Where all peers acted alike, C is 0.

    Args:
        table: columns group, trajectory, agent, turn, reward; state_key and action_key, or the columns of `by` and
            `acts`; for "replay" `without` (rows,): the team's return when the episode was played again with a default
            in place of the role's acts, on any row of the role, NaN elsewhere (program `replayed` gives it).
        against: what the act is compared with: "all", "others" or "replay", as above.
        by: columns whose equal values make acts peers. ("group", "agent", "act") compares acts of the same number,
            whatever the state.
        acts: columns whose equal values make acts equal.
        share: in [0, 1]. Lower: more of the original rewards remains. Usual: 1, or 0.5 beside the team's reward.

    Returns: float32 (rows,); 0 on padding.
    Raises: InvalidData, for "replay" where an episode was not played again without one of its roles.

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "b", "c"], agent=["x"] * 3, turn=[0] * 3,
    ...                   reward=[1, 0, 0], state_key=["s"] * 3, action_key=["l", "l", "r"])
    >>> [round(r, 4) for r in counterfactual(table).tolist()]
    [0.1667, 0.1667, -0.3333]
    """
    counts, returns = table.row_weight > 0, total_return(table).double()
    if against == "replay":
        credit = _replayed(table, counts, returns)
    else:
        credit = _compared(table, counts, returns, others=against == "others", by=by, acts=acts)
    mixed = share * credit + (1 - share) * table["reward"].double()
    return torch.where(counts, mixed, 0.0).float()


def _compared(
    table: StepTable, counts: Tensor, returns: Tensor, *, others: bool, by: Columns, acts: Columns
) -> Float[Tensor, " rows"]:
    """Mean return of the peers that acted alike, minus that of all peers, or of the others."""
    weight = counts.double()
    peers, alike = table.key(*by), table.key(*by, *acts)
    peers, alike = Key(peers.codes, peers.size, (), weight), Key(alike.codes, alike.size, (), weight)
    same = segment_mean(returns, by=alike)[alike.codes]
    if not others:
        return same - segment_mean(returns, by=peers)[peers.codes]
    ones = torch.ones_like(returns)
    rest = (segment_sum(ones, by=peers)[peers.codes] - segment_sum(ones, by=alike)[alike.codes]).clamp_min(0)
    total = segment_sum(returns, by=peers)[peers.codes] - segment_sum(returns, by=alike)[alike.codes]
    return torch.where(rest > 0, same - total / rest.clamp_min(1), 0.0)


def _replayed(table: StepTable, counts: Tensor, returns: Tensor) -> Float[Tensor, " rows"]:
    """R minus the return without the role, on the role's last step. Raises: InvalidData."""
    role = table.key("trajectory", "agent")
    given = counts & table["without"].isfinite()
    without = segment_mean(table["without"].nan_to_num(), by=Key(role.codes, role.size, (), given.double()))
    known = torch.zeros(role.size, dtype=torch.bool).index_fill_(0, role.codes[given], True)
    lost = (counts & ~known[role.codes]).nonzero()
    if len(lost):
        row = int(lost[0, 0])
        agent = table.labels("agent")[int(table["agent"][row])]
        raise InvalidData(
            where=f"{PLACE}, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what=f"it was not played again without `{agent}`: no row of the role has a number in column `without`.",
            remedy="Play with `program: replayed`, or compare inside the group: `against: all`.",
        )
    order, last = table.timeline("trajectory", "agent")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last)
    return torch.where(ends, returns - without[role.codes], 0.0)
