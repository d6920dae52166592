"""VerlTool (arXiv 2509.01055) is a framework for training agents with many kinds of tools. Tool outputs are part of a
trajectory but have no loss, and each trajectory calls its tool as soon as its own turn ends. Here the runner `episodes`
in `palaestra/rollout/runner.py` does this, and tools are in `palaestra/tools`. The authors' tool server, its protocol
and the state it keeps for each trajectory, and observations of images and videos are not here. The penalties for
unreadable acts, for no end and for no call are options of the authors' code. This file is the reward with these
penalties; the estimator `grpo` is in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.parts.tool_calls import at_the_end, last_rows, total_of
from palaestra.registry import NonNegative, register


@register(
    "reward",
    "tool_penalties",
    reads=("tool_call", "invalid?", "truncated?"),
    reads_if={"format": ("format",)},
    writes=("reward", "penalty"),
    source="arXiv 2509.01055, public code",
)
def tool_penalties(
    table: StepTable,
    *,
    invalid: NonNegative = 0.25,
    unfinished: NonNegative = 0.25,
    no_call: NonNegative = 0.25,
    format: NonNegative = 0.0,
) -> dict[str, Float[Tensor, " rows"]]:
    """Subtract penalties from the reward, once per trajectory and on its last row.

        P = invalid · [an act was unreadable] + unfinished · [it was truncated] + no_call · [no tool was called]
            + format · (1 − f)

    Args:
        table: columns reward and tool_call; invalid and truncated, if present; for a positive `format`, format, whose
            value f on the last row counts.
        invalid, unfinished, no_call: ≥ 0. Higher: the policy avoids it sooner, but may learn nothing else. Usual: 0.25.
        format: ≥ 0. Usual: 0.5 where a format is asked for, else 0.

    Returns: reward − penalty, and penalty, each float32 (rows,). With all penalties 0 the reward does not change.
    Raises: MissingColumn, without one of the columns.
    """
    none = torch.zeros(len(table))
    price = invalid * (total_of(table, table["invalid"].float() if "invalid" in table else none) > 0).double()
    price = price + unfinished * (total_of(table, table["truncated"].float() if "truncated" in table else none) > 0)
    price = price + no_call * (total_of(table, table["tool_call"].float()) == 0)
    if format:
        price = price + format * (1 - table["format"].double())
    penalty = at_the_end(table, price)
    reward = torch.where(last_rows(table), table["reward"].double() - price, table["reward"].double()).float()
    return {"reward": reward, "penalty": penalty}
