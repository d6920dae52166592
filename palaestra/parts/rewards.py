"""Rewards from what every environment tells: its own, the outcome, penalties, shares of roles."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_count, segment_sum, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, Fraction, NonNegative, PositiveInt, register


@register("reward", "environment", reads=(), writes=("reward",))
def environment(table: StepTable) -> Float[Tensor, " rows"]:
    """The reward column as it is: float32 (rows,)."""
    return table["reward"]


@register("reward", "outcome", reads=("outcome", "terminated?", "truncated?"), writes=("reward",))
def outcome(table: StepTable, *, by: Columns = ("trajectory",)) -> Float[Tensor, " rows"]:
    """The raw outcome on the last row of each trajectory, 0 elsewhere; replaces the environment's rewards.

    Args:
        table: column outcome (rows,), equal on all rows of a trajectory; terminated, truncated (rows,), if there:
            a trajectory with neither on its last row is unfinished, and without an outcome it gets 0.
        by: ("trajectory", "agent") puts it on every agent's last row, for estimators that follow each agent.

    Returns: float32 (rows,).
    Raises: MissingColumn, if there are no outcomes; InvalidData, if a trajectory has none.
    """
    order, last = table.timeline(*by)
    ends = order[last]
    ends = ends[table.row_weight[ends] > 0]
    result = table["outcome"][ends]
    unfinished = torch.zeros(len(ends), dtype=torch.bool)
    if "terminated" in table and "truncated" in table:
        unfinished = ~(table["terminated"] | table["truncated"])[ends]
    result = torch.where(unfinished & result.isnan(), 0.0, result)
    missing = result.isnan().nonzero()
    if len(missing):
        row = int(ends[missing[0, 0]])
        raise InvalidData(
            where=f"reward: outcome, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what=f"it has no outcome, as {len(missing)} of {len(ends)}.",
            remedy="Give `success` or `outcome` in the environment's last `info`, or use reward: environment.",
        )
    return torch.zeros(len(table)).index_copy_(0, ends, result)


@register("reward", "cut_outcome", reads=("outcome", "truncated"), writes=("outcome",))
def cut_outcome(table: StepTable, *, value: float = 0.0) -> dict[str, Tensor]:
    """Where a trajectory was cut off and has no outcome, its outcome is `value`.

    An environment judges an episode at its own end. Where a limit of the rollout comes first there is no outcome, and
    parts that read outcomes refuse such rows. This part stands before them; rewards and values stay as they are.

    Args:
        table: columns outcome, truncated (rows,).
        value: what an unfinished episode is worth. Usual: 0, a failure.

    Returns: `outcome`, float32 (rows,).
    """
    key = table.key("trajectory")
    cut = torch.zeros(key.size, dtype=torch.bool)
    cut[key.codes[table["truncated"] & (table.row_weight > 0)]] = True
    missing = table["outcome"].isnan() & cut[key.codes]
    return {"outcome": torch.where(missing, torch.as_tensor(value), table["outcome"])}


@register("reward", "invalid_penalty", reads=("invalid?",), writes=("reward",), source="arXiv 2602.08847, public code")
def invalid_penalty(table: StepTable, *, coefficient: NonNegative = 0.1) -> Float[Tensor, " rows"]:
    """reward − coefficient · invalid.

    Args:
        table: column invalid (rows,), 1 where the action was unreadable; absent, if none was.
        coefficient: ≥ 0. Higher: formats are learned sooner, and silence may be too. Usual: 0.01–0.1.

    Returns: float32 (rows,).
    """
    if "invalid" not in table:
        return table["reward"]
    return table["reward"] - coefficient * table["invalid"].float()


@register("reward", "overlong", reads=(), writes=("reward", "overlong"), source="arXiv 2503.14476")
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
    reads_if={"team=outcome": ("outcome",), "own=process": ("process",)},
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
    """Share between a role's own rewards and the team's: the rewards of role k in an episode sum to

        R_k = w_k · r_k + (1 − w_k) · r_team        r_k: sum (or mean) of the role's own rewards in the episode

    Own rewards stay on their steps, times w; (1 − w) · r_team comes on the role's last step of the episode. Estimators
    see R_k with `returns: [trajectory, agent]`; a role that did not act in an episode gets nothing from it. A sum
    r_k + a · r_team, as some authors write it, is 1 + a times this with w = 1 / (1 + a), the same after a division
    by the deviation.

    Args:
        table: columns trajectory, agent, turn, reward, each (rows,); outcome (rows,) for `team: outcome`.
        weight: w in [0, 1], or one for each role, `"*"` for those that are not named. Higher: roles learn their own
            work faster, and what serves the team only by their pay; 1 leaves all rewards as they are, 0 pays all roles
            the same. Usual: 0.5.
        team: "sum" of all rewards of the episode, or its "outcome".
        own: column of a role's own rewards; `process` takes a judge's scores, and where it is missing (NaN) a step
            has none.
        pool: "mean" divides own rewards by the role's steps in the episode that have one, so that long work is not
            paid more.

    Returns: float32 (rows,), in place of the rewards; 0 on padding.
    Raises: RecipeError, for a role without weight; InvalidData, for an episode without outcome (`team: outcome`).

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
    """w of each row's role. Raises: RecipeError."""
    names = [str(label) for label in table.labels("agent")]
    if not isinstance(weight, dict):
        return torch.full((len(table),), weight, dtype=torch.float64)
    missing = [name for name in names if name not in weight and "*" not in weight]
    if missing:
        raise RecipeError(
            where="reward: role_mix, weight",
            what=f"role `{missing[0]}` has none; there are weights for {', '.join(weight) or 'nobody'}.",
            remedy=f'Add `{missing[0]}: …` to `weight`, or `"*": …` for all that are not named.',
        )
    each = [weight[name] if name in weight else weight["*"] for name in names]
    return torch.tensor(each, dtype=torch.float64)[table["agent"]]


def _outcomes(table: StepTable, counts: Tensor) -> Float[Tensor, " rows"]:
    outcome = table["outcome"].double()
    lost = (counts & outcome.isnan()).nonzero()
    if len(lost):
        row = int(lost[0, 0])
        raise InvalidData(
            where=f"reward: role_mix, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what="it has no outcome, and `team: outcome` pays every role by it.",
            remedy="Let the environment tell `success` in its `info`, or take `team: sum`.",
        )
    return outcome
