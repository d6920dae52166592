"""The estimator `egae`: generalized advantage estimation on finished and unfinished responses."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import Credit, lambda_return
from palaestra.algebra import whiten as whiten_units
from palaestra.data import StepTable
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "egae",
    reads=("terminated?", "truncated?", "bootstrap_value?"),
    reads_if={"level=row": ("row_value",), "level=token": ("value_old",), "whiten": ("fresh?",)},
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2506.15050",
)
def egae(
    table: StepTable,
    *,
    level: Literal["row", "token"] = "token",
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    gamma_in: Fraction | None = None,
    whiten: bool = False,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Advantages of finished and unfinished trajectories; targets of the critic from finished ones only.

        δ_u = r_u + gamma · V_{u+1} − V_u       A_u = δ_u + gamma · lam · A_{u+1}       target_u = Σ gamma^k r_{u+k}

    V_{u+1} is 0 after a terminated row, and the value of the next observation after a truncated one. After the last
    unit of an unfinished trajectory it is V_u itself, so that with gamma 1 the last δ is its own reward; the target
    there is NaN, which means that there is none. A finished trajectory has exactly the advantages of PPO.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated (both False: unfinished); row_value
            (rows,) at level "row", value_old (tokens,) at level "token"; bootstrap_value (rows,) where a trajectory is
            truncated; fresh (rows,), if present, marks the rows that `whiten` uses.
        level: the unit of time. "token": each response token. "row": one value and one advantage per step.
        gamma: in [0, 1]. Higher: late rewards reach early units. Usual: 1.
        lam: in [0, 1]. Higher: less bias, more variance. Usual: 0.95. Targets always use 1 (Monte Carlo).
        gamma_in: discount between the tokens of one row, at level "token"; None: gamma.
        whiten: standardize advantages over the units of this window; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values. A
            trajectory is unfinished if any of its chains has no end.

    Returns: Credit of float32 (rows,) or (tokens,).
    Raises: MissingColumn, without a critic or end flags; InvalidData, for values that are not finite.
    Differs from the authors' code: unknown, there is none; the paper gives neither the window nor lam.
    """
    estimate = lambda_return(
        table,
        gamma=gamma,
        lam=lam,
        level=level,
        gamma_in=gamma_in,
        by=chain,
        open_end="last_value",
        target_lam=1.0,
    )
    row = table.token_row if level == "token" else torch.arange(len(table))
    assert estimate.target is not None  # `lambda_return` always gives a target
    target = torch.where(_finished(table, chain)[row], estimate.target, torch.nan)
    if not whiten:
        return Credit(estimate.advantage, target)
    learns = estimate.judged  # units of agents with a critic
    if "fresh" in table:
        learns = learns & (table["fresh"][row] > 0)
    return Credit(whiten_units(estimate.advantage, weight=learns), target)


def _finished(table: StepTable, chain: tuple[str, ...]) -> Bool[Tensor, " rows"]:
    """Whether every chain of the row's trajectory has an end."""
    order, last = table.timeline(*chain)
    ended = torch.zeros(len(table), dtype=torch.bool)
    for flag in ("terminated", "truncated"):
        if flag in table:
            ended |= table[flag]
    unfinished = last & (~ended & (table.row_weight > 0))[order]
    trajectory = table.key("trajectory")
    goes_on = torch.zeros(trajectory.size, dtype=torch.bool)
    goes_on[trajectory.codes[order[unfinished]]] = True
    return ~goes_on[trajectory.codes]
