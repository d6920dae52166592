"""M-GRPO's advantage: main rollouts are compared with each other, and the calls of a sub-agent with each other."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_count, segment_rank, segment_sum, uniform_per_unit
from palaestra.data import Iteration, Key, StepTable
from palaestra.registry import PositiveInt, register
from palaestra.systems.m_grpo.calls import calls_of

Align = Literal["weight", "duplicate"]


@register(
    "advantage",
    "m_grpo",
    ignores_if={"align=weight": ("calls",)},
    reads=("parent?", "invocation?"),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2511.13288",
)
def m_grpo(
    table: StepTable,
    iteration: Iteration,
    *,
    main: str | None = None,
    align: Align = "weight",
    calls: PositiveInt = 8,
    peers: Peers = Peers(ddof=0, fixed=("by", "unit")),
) -> Float[Tensor, " rows"]:
    """Standardize the main agent's return over rollouts, and a call's reward over all calls of the group.

        main   A_i = (R_i − mean of R over the group) / (deviation + 1e-6)      R_i: the main agent's rewards
        sub    A_c = (r_c − mean of r over the calls) / (deviation + 1e-6)      r_c: rewards of all rows of call c

    In the second line every rollout has the same weight, however often it calls. With "weight", a call of a rollout
    with d_m calls weighs 1/d_m. With "duplicate", it counts as often as it occurs among `calls` copies. Rollouts that
    never call are not in the second line.

    Args:
        table: columns group, trajectory, agent, turn, reward, invocation, parent, each (rows,).
        iteration: its seed decides the random choice of "duplicate", which depends on the names of trajectory, agent
            and call, not on the order of rows.
        main: name of the main agent; None: rows without a parent are the main agent's.
        align: "weight" has the mean of "duplicate" without its noise; "duplicate" is as published.
        calls: ≥ 1, d, used by "duplicate" only. Each call of a rollout is taken ⌊d/d_m⌋ times, and d mod d_m random
            ones once more. Calls that are not taken get advantage 0. Higher: fewer calls are dropped. Usual: 8, such
            that 99 % of the rollouts call at most d times.
        peers: ddof, singleton and zero_variance of `Peers`, for both lines.
        ddof: degrees of freedom subtracted in the deviation: 0 is the population deviation of the paper, 1 the
            sample's.

    Returns: float32 (rows,); all rows of a call have the same value.
    Raises: InvalidData, if no group has two rollouts, or if a call has no parent in its trajectory.
    Differs from the authors' code: duplicates are spread evenly before chance decides; "weight" is ours.

    >>> table = StepTable(group=["g"] * 5, trajectory=["a", "a", "b", "b", "b"], agent=["m", "s", "m", "s", "s"],
    ...                   turn=[0, 1, 0, 1, 2], reward=[1, 0.4, 0, 0.9, 0.1], invocation=[0, 1, 0, 1, 2],
    ...                   parent=[None, 0, None, 0, 0])
    >>> [round(a, 3) for a in m_grpo(table, Iteration()).tolist()]
    [1.0, -0.174, -1.0, 1.567, -1.219]
    """
    found = calls_of(table, main=main, where="advantage: m_grpo")
    counts = table.row_weight > 0
    own = (counts & found.main).double()
    returns = segment_sum(table["reward"], by=_weighed(table.key("trajectory"), own))[table["trajectory"]]
    rollouts = peers.standardize(returns, table, by=_weighed(table.key(*peers.by), own), scale="std")
    called = counts & ~found.main
    if not bool(called.any()):
        return rollouts
    one = _weighed(found.key, called.double())
    rows = torch.zeros(one.size, dtype=torch.int64)
    rows[one.codes[called]] = called.nonzero()[:, 0]  # any row of the call: trajectory, agent and group are the same
    share = _shares(table, one, rows, align=align, calls=calls, seed=iteration.seed)
    agents = table.key(*peers.by, "agent")
    others = Key(agents.codes[rows], agents.size, agents.names, share)
    each = peers.inside(segment_sum(table["reward"], by=one), others, scale="std", singleton=peers.singleton)
    return torch.where(found.main, rollouts, torch.where(called, each[one.codes], 0.0))


def _weighed(key: Key, weight: Tensor) -> Key:
    return Key(key.codes, key.size, key.names, weight)


def _shares(
    table: StepTable, one: Key, rows: Tensor, *, align: Align, calls: int, seed: int
) -> Float[Tensor, " calls"]:
    """The weight of each call in mean and deviation; 0 for calls that consist of padding."""
    there = (segment_count(by=one) > 0).double()
    rollout = table.key("trajectory", "agent")
    of = Key(rollout.codes[rows], rollout.size, (), there)
    made = segment_count(by=of)[of.codes].clamp_min(1.0)
    if align == "weight":
        return there / made
    names = ("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
    draws = uniform_per_unit(table, names, seed=seed, purpose="duplicates")[rows]
    chance = torch.where(there > 0, draws, torch.inf)
    extra = segment_rank(chance, by=of) < calls % made
    return there * (torch.div(calls, made, rounding_mode="floor") + extra)
