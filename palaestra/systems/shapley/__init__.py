"""Shapley values divide what a team achieved among its members. CapaBench (arXiv 2502.00510) uses them to measure what
each module of an agent adds to a benchmark score, by running all combinations of modules. Here the division is a reward
for training: the value of a part of the team is the mean return of the group's episodes in which exactly these roles
took part, so no combination is run on purpose. The released scripts of CapaBench weight all combinations equally, which
is the Banzhaf index; here the shares are Shapley's and sum to the return. CapaBench's tasks are not here.

This file is the reward. `coalitions.py` computes Shapley and Banzhaf values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.algebra import segment_count, segment_mean, total_return
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import Columns, register
from palaestra.systems.shapley.coalitions import Coalition, coalitions, shapley

PLACE = "reward: shapley"
BITS = 62


@register("reward", "shapley", reads=(), writes=("reward",), uses=("group",), source="arXiv 2502.00510")
def shapley_credit(
    table: StepTable,
    *,
    by: Columns = ("group",),
    baseline: float = 0.0,
    missing: Literal["baseline", "error"] = "baseline",
    present: str | None = None,
) -> Float[Tensor, " rows"]:
    """Pay each role of an episode its Shapley share of the episode's return.

        v_i(S) = R_i for S = the roles of episode i;   for parts T of S: the mean return of the group's episodes in
        which exactly T took part;   v(∅) = baseline
        role k:  φ_k(v_i), on its last step of episode i          Σ_k φ_k = R_i − baseline

    A role has a small share if the others did as well without it, and a large one if the team failed without it. Where
    all roles took part in all episodes, nothing distinguishes them, and each gets R / n.

    Coalitions are compared as they occurred: a role that is called where the task goes badly looks worse than it is.
    This bias is absent where roles are left out at random, or replaced by stand-ins. A stand-in's rows have weight 0,
    and it is not in the coalition. A reward on a stand-in's act counts in no return, so the environment should pay the
    team on another agent's act.

    Args:
        table: columns group, trajectory, agent, turn, reward, each (rows,).
        by: columns whose equal values mark the episodes whose returns make v.
        baseline: v(∅), the return without any role. The return above it is divided.
        missing: for a part of S without an episode in the group: "baseline" gives it v(∅), as if these roles alone
            achieved nothing; "error" refuses it.
        present: a column that must be above 0 on some row of a role for it to have taken part, such as `format`; None:
            every role that acted took part. A role that acted and did not take part gets 0.

    Returns: float32 (rows,), in place of the rewards: 0 but on the last rows of roles.
    Raises: InvalidData, for more than 10 roles in one episode, for an episode in which no role took part, or for a
        missing coalition under "error".

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "b", "b"], agent=["x", "x", "y"], turn=[0, 0, 1],
    ...                   reward=[0.4, 0, 1])
    >>> [round(r, 4) for r in shapley_credit(table).tolist()]
    [0.4, 0.7, 0.3]
    """
    counts = table.row_weight > 0
    takes_part = counts if present is None else counts & (table[present] > 0)
    roles = table.key("trajectory", "agent")
    joins = torch.zeros(roles.size, dtype=torch.bool).index_fill_(0, roles.codes[takes_part], True)
    team = _teams(table, roles, joins, counts)
    peers = table.key(*by)
    kind = peers & Key(*compact(team))
    episode = table.unit("trajectory")
    returns = total_return(table).double()
    mean = segment_mean(returns, by=_once(kind, episode, counts))
    names = [str(label) for label in table.labels("agent")]
    rows = torch.full((kind.size,), -1).index_put_((kind.codes[counts],), counts.nonzero()[:, 0])
    rows = rows[rows >= 0]  # one row of each kind of episode
    seen = {
        (int(peers.codes[row]), int(team[row])): value
        for row, value in zip(rows.tolist(), mean[kind.codes[rows]].tolist(), strict=True)
    }
    share = torch.zeros((kind.size, len(names)), dtype=torch.float64)
    for row in rows.tolist():
        members = [agent for agent in range(len(names)) if int(team[row]) >> agent & 1]
        game = _game(int(peers.codes[row]), members, seen, names, baseline=baseline, missing=missing)
        found = shapley(game, [names[agent] for agent in members])
        share[kind.codes[row], members] = torch.tensor([found[names[agent]] for agent in members], dtype=torch.float64)
    size = sum((team >> agent) & 1 for agent in range(len(names)))
    mine = share[kind.codes, table["agent"]] + (returns - mean[kind.codes]) / torch.as_tensor(size).clamp_min(1)
    order, last = table.timeline("trajectory", "agent")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last)
    return torch.where(ends & counts & joins[roles.codes], mine, 0.0).float()


def _teams(table: StepTable, roles: Key, joins: Tensor, counts: Tensor) -> Int[Tensor, " rows"]:
    """The roles that took part in each row's episode, as one bit per agent. Raises: InvalidData, if there are none."""
    if len(table.labels("agent")) > BITS:
        raise InvalidData(
            where=PLACE,
            what=f"there are {len(table.labels('agent'))} roles; at most {BITS} are possible.",
            remedy="Give agents with the same task the same role.",
        )
    episodes = int(table["trajectory"].max()) + 1 if len(table) else 0
    team = torch.zeros(episodes, dtype=torch.int64)
    one = torch.zeros(roles.size, dtype=torch.int64).index_copy_(0, roles.codes, torch.arange(len(table)))
    one = one[joins]  # one row of each role that took part
    team.index_add_(0, table["trajectory"][one], 1 << table["agent"][one])
    team = team[table["trajectory"]]
    empty = (counts & (team == 0)).nonzero()
    if len(empty):
        row = int(empty[0, 0])
        raise InvalidData(
            where=f"{PLACE}, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what="none of its roles took part, so its return cannot be divided.",
            remedy="Check the column that `present` names, or leave `present` out.",
        )
    return team


def _once(kind: Key, episode: Key | None, counts: Tensor) -> Key:
    """The same sets, with each episode counted once."""
    assert episode is not None
    many = segment_count(by=Key(episode.codes, episode.size, (), counts.double()))[episode.codes]
    return Key(kind.codes, kind.size, kind.names, counts / many.clamp_min(1.0))


def _game(
    group: int,
    members: list[int],
    seen: Mapping[tuple[int, int], float],
    names: list[str],
    *,
    baseline: float,
    missing: Literal["baseline", "error"],
) -> dict[Coalition, float]:
    """The value of each part of these members in the group."""
    values: dict[Coalition, float] = {}
    for chosen in coalitions([names[agent] for agent in members]):
        bits = sum(1 << agent for agent in members if names[agent] in chosen)
        if chosen and missing == "error" and (group, bits) not in seen:
            raise InvalidData(
                where=PLACE,
                what=f"no episode of the group was played by {{{', '.join(sorted(chosen))}}} alone.",
                remedy="Leave roles out at random, use larger groups, or set `missing: baseline`.",
            )
        values[chosen] = seen.get((group, bits), baseline) if chosen else baseline
    return values
