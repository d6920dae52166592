"""Rewards that fit every environment: its own reward, the outcome, penalties, and shares of roles."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import segment_count, segment_sum, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, Fraction, NonNegative, PositiveInt, register


@register("reward", "environment", reads=(), writes=("reward",))
def environment(table: StepTable) -> Float[Tensor, " rows"]:
    """Use the reward of the environment unchanged: float32 (rows,)."""
    return table["reward"]


@register("reward", "outcome", reads=("outcome", "terminated?", "truncated?"), writes=("reward",))
def outcome(table: StepTable, *, by: Columns = ("trajectory",)) -> Float[Tensor, " rows"]:
    """Replace the rewards: the raw outcome on the last row of each trajectory, and 0 on all other rows.

    Args:
        table: column outcome (rows,), equal on all rows of a trajectory. With the columns terminated and truncated
            (rows,), a trajectory is unfinished if its last row has neither; it gets 0 if it has no outcome. So does one
            that a limit has cut off.
        by: ("trajectory", "agent") puts the outcome on the last row of every agent, for estimators that treat each
            agent separately.

    Returns: float32 (rows,).
    Raises: MissingColumn, if there are no outcomes; InvalidData, if a finished trajectory has none.
    """
    order, last = table.timeline(*by)
    ends = order[last]
    ends = ends[table.row_weight[ends] > 0]
    result = outcomes_of(table)[ends]
    unfinished = torch.zeros(len(ends), dtype=torch.bool)
    if "terminated" in table and "truncated" in table:
        unfinished = ~(table["terminated"] | table["truncated"])[ends]
    result = torch.where(unfinished & result.isnan(), 0.0, result)
    missing = result.isnan().nonzero()
    if len(missing):
        row = int(ends[missing[0, 0]])
        raise InvalidData(
            where=f"reward: outcome, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what=f"it has no outcome ({len(missing)} of {len(ends)} trajectories have none).",
            remedy="Let the environment give `success` or `outcome` in its last `info`, or use reward: environment.",
        )
    return torch.zeros(len(table)).index_copy_(0, ends, result)


@register("reward", "cut_outcome", reads=("outcome", "truncated"), writes=("outcome",))
def cut_outcome(table: StepTable, *, value: float = 0.0) -> dict[str, Tensor]:
    """Give the outcome `value` to trajectories that were cut off and have no outcome.

    An environment gives the outcome at the end of an episode. If a limit of the rollout comes first, there is none.
    Parts that read outcomes then read a failure. For another outcome, put this part before them. Rewards and values do
    not change.

    Args:
        table: columns outcome, truncated (rows,).
        value: the outcome of an unfinished episode. Usual: 0, a failure.

    Returns: `outcome`, float32 (rows,).
    """
    return {"outcome": outcomes_of(table, cut=value)}


def outcomes_of(table: StepTable, *, cut: float = 0.0) -> Float[Tensor, " rows"]:
    """The outcome of each row's trajectory; `cut` for one that was cut off before the environment had judged it."""
    missing = table["outcome"].isnan() & cut_off(table)
    return torch.where(missing, torch.as_tensor(cut), table["outcome"])


def cut_off(table: StepTable) -> Bool[Tensor, " rows"]:
    """True on the rows of trajectories that a limit has cut off; all false without the column `truncated`."""
    key = table.key("trajectory")
    is_cut = torch.zeros(key.size, dtype=torch.bool)
    if "truncated" in table:
        is_cut[key.codes[table["truncated"] & (table.row_weight > 0)]] = True
    return is_cut[key.codes]


@register("reward", "invalid_penalty", reads=("invalid?",), writes=("reward",), source="arXiv 2602.08847, public code")
def invalid_penalty(table: StepTable, *, coefficient: NonNegative = 0.1) -> Float[Tensor, " rows"]:
    """Subtract a penalty for unreadable actions: reward − coefficient · invalid.

    Args:
        table: column invalid (rows,), 1 where the action was unreadable. It may be absent.
        coefficient: ≥ 0. Higher: the format is learned sooner, but the policy may also learn to do little. Usual:
            0.01–0.1.

    Returns: float32 (rows,).
    """
    if "invalid" not in table:
        return table["reward"]
    return table["reward"] - coefficient * table["invalid"].float()


@register("reward", "overlong", reads=(), writes=("reward", "overlong"), source="arXiv 2503.14476")
def overlong(
    table: StepTable, *, maximum: PositiveInt = 20480, buffer: PositiveInt = 4096, factor: NonNegative = 1.0
) -> dict[str, Float[Tensor, " rows"]]:
    """Penalize long trajectories: reward + factor · p(L) on the last row of one with L response tokens.

        p(L) = 0                            L ≤ maximum − buffer
               (maximum − buffer − L) / buffer    up to L = maximum
               −1                           beyond

    Args:
        table: columns trajectory, turn, reward, token_count, each (rows,). A network policy has one token a step.
        maximum: number of tokens from which a trajectory gets the whole penalty. Usual: the token budget of an episode.
        buffer: number of tokens below `maximum` over which the penalty grows. Higher: it grows more slowly. Usual: a
            fifth of `maximum`.
        factor: ≥ 0, the largest penalty. Higher: shorter responses. Usual: 1 for rewards of ±1, 0.5 for rewards of 0
            and 1; 0: no penalty.

    Returns: "reward" (rows,), and "overlong" (rows,): factor · p(L), 0 on rows that are not the last.
    Raises: RecipeError, if the buffer exceeds the maximum.
    """
    if buffer > maximum:
        raise RecipeError(
            where="reward: overlong",
            what=f"`buffer: {buffer}` exceeds `maximum: {maximum}`, so every response would get a penalty.",
            remedy="Set `maximum` to the token budget of an episode, and `buffer` to about a fifth of it.",
        )
    counts, key = table.row_weight > 0, table.key("trajectory")
    length = segment_sum(table["token_count"], by=Key(key.codes, key.size, (), counts.double()))
    price = ((maximum - buffer - length) / buffer).clamp(-1.0, 0.0)
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last) & counts
    added = torch.where(ends, factor * price[key.codes], 0.0).float()
    return {"reward": table["reward"] + added, "overlong": added}


@register(
    "reward",
    "role_mix",
    reads=(),
    reads_if={"team=outcome": ("outcome", "truncated?"), "own=process": ("process",)},
    writes=("reward",),
    source="arXiv 2508.03404",
)
def role_mix(
    table: StepTable,
    *,
    weight: Fraction | dict[str, Fraction] = 0.5,
    team: Literal["sum", "outcome"] = "sum",
    own: str = "reward",
    pool: Literal["sum", "mean"] = "sum",
) -> Float[Tensor, " rows"]:
    """Mix a role's own rewards with the team's. The rewards of role k in an episode then sum to

        R_k = w_k · r_k + (1 − w_k) · r_team        r_k: sum (or mean) of the role's own rewards in the episode

    Each step keeps its own reward times w. The role's last step of the episode also gets (1 − w) · r_team. Estimators
    use R_k with `returns: [trajectory, agent]`. A role that did not act in an episode gets nothing from it. Some
    authors write r_k + a · r_team. This is 1 + a times R_k with w = 1 / (1 + a), so it is the same after a division by
    the deviation.

    Args:
        table: columns trajectory, agent, turn, reward, each (rows,); outcome (rows,) for `team: outcome`.
        weight: w in [0, 1], or one for each role, with `"*"` for roles that are not named. Higher: a role learns its
            own work faster and the goal of the team more slowly. 1 keeps all own rewards; 0 gives all roles the same
            sum. Usual: 0.5.
        team: r_team: the "sum" of all rewards of the episode, or its "outcome".
        own: column of the role's own rewards. `process` holds the scores of a judge; NaN means no reward.
        pool: "sum", or "mean", which divides by the number of the role's steps that have a reward, so that more steps
            bring no larger sum.

    Returns: float32 (rows,), which replaces the rewards; 0 on padding.
    Raises: RecipeError, for a role without a weight; InvalidData, with `team: outcome` for an episode without outcome.

    >>> table = StepTable(group=["g"] * 2, trajectory=["a"] * 2, agent=["planner", "solver"], turn=[0, 1],
    ...                   reward=[0.8, 0.6], outcome=[1, 1])
    >>> [round(r, 4) for r in role_mix(table, team="outcome").tolist()]
    [0.9, 0.8]
    """
    counts, share = table.row_weight > 0, _shares(table, weight)
    paid = table[own].double()
    given = counts & paid.isfinite()
    paid = torch.where(given, paid, 0.0)
    if pool == "mean":
        role = table.key("trajectory", "agent")
        paid = paid / segment_count(by=Key(role.codes, role.size, (), given.double())).clamp_min(1.0)[role.codes]
    whole = total_return(table).double() if team == "sum" else _outcomes(table, counts)
    order, last = table.timeline("trajectory", "agent")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last)
    mixed = share * paid + torch.where(ends, (1 - share) * whole, 0.0)
    return torch.where(counts, mixed, 0.0).float()


def _shares(table: StepTable, weight: float | dict[str, float]) -> Float[Tensor, " rows"]:
    """The weight w of the role of each row. Raises: RecipeError, for a role without a weight."""
    names = [str(label) for label in table.labels("agent")]
    if not isinstance(weight, dict):
        return torch.full((len(table),), weight, dtype=torch.float64)
    missing = [name for name in names if name not in weight and "*" not in weight]
    if missing:
        raise RecipeError(
            where="reward: role_mix, weight",
            what=f"role `{missing[0]}` has no weight. Roles with a weight: {', '.join(weight) or 'none'}.",
            remedy=f'Add `{missing[0]}: …` to `weight`, or `"*": …` for all roles that are not named.',
        )
    each = [weight[name] if name in weight else weight["*"] for name in names]
    return torch.tensor(each, dtype=torch.float64)[table["agent"]]


def _outcomes(table: StepTable, counts: Tensor) -> Float[Tensor, " rows"]:
    outcome = outcomes_of(table).double()
    lost = (counts & outcome.isnan()).nonzero()
    if len(lost):
        row = int(lost[0, 0])
        raise InvalidData(
            where=f"reward: role_mix, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what="it has no outcome, and `team: outcome` needs one.",
            remedy="Let the environment give `success` in its `info`, or set `team: sum`.",
        )
    return outcome
