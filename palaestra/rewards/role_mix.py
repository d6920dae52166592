"""Mixed rewards: each role is paid for its own work and for what the team achieved.

Knows rewards, agents and trajectories. Knows nothing of who earned what, or how.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Key, StepTable, segment_count, total_return
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Fraction, register


@register("reward", "role_mix", source="arXiv 2508.03404")
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
    counts, share = table.weight > 0, _shares(table, weight)
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
