"""The paper (arXiv 2510.01132) compares choices in multi-turn reinforcement learning: the environment's difficulty,
dense or single rewards, the algorithm, and the division of a budget between demonstrations and episodes. Its PPO runs
over all tokens of an episode, with a KL term inside the reward. Dense rewards are divided by their number in a win,
and otherwise by the most that the game can give. Here a positive step reward of any size counts as 1, so that a win
is worth 1 in every game. The paper's full grid and its runs in TextWorld, ALFWorld and SWE-Gym are not here. This
file is the reward; the estimator `ppo_max` is in `palaestra/parts/critics.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import PositiveInt, declared, declaring, register

WHERE = "reward: dense_normalized"


def _no_maximum() -> InvalidData:
    return InvalidData(
        where=WHERE,
        what="neither the option nor the column `maximum` gives the number of rewards that a game can give.",
        remedy='Set `maximum`, or give info["maximum"] = {agent: …} in the environment.',
    )


def _fits(options: Mapping[str, Any], settings: Any, source: Any) -> None:
    """Refuse an environment that declares its columns, and `maximum` is none of them."""
    provides = declared(source, "provides")
    if options["maximum"] is None and provides is not None and "maximum" not in provides:
        raise _no_maximum()


@register(
    "reward",
    "dense_normalized",
    reads=("outcome", "maximum?", "truncated?"),
    writes=("reward",),
    source="arXiv 2510.01132, public code",
)
@declaring(fits=_fits)
def dense_normalized(table: StepTable, *, maximum: PositiveInt | None = None, column: str = "reward") -> Tensor:
    """1 for each step with a positive reward, divided by their number in a win and by the game's maximum otherwise.

        r_k = [x_k > 0] / n                                  x: step rewards
        n   = max(number of positive x of the trajectory, 1) if its outcome is 1, else maximum

    A win without any positive step reward is worth 0.

    Args:
        table: columns outcome and `column` (rows,); `maximum` (rows,), the most positive rewards that the game can
            give, unless given as an option.
        maximum: ≥ 1, in place of the column. Higher: partial success is worth less.
        column: the column of the step rewards.

    Returns: float32 (rows,).
    Raises: InvalidData, if neither option nor column gives the maximum, if it is below 1, or if a trajectory has no
        outcome.

    Differs from the authors' code: step rewards of another size than 1 count as 1, so that a win is worth 1 in every
        game.
    """
    counts = table.row_weight > 0
    most = _most(table, counts, maximum)
    outcome = outcomes_of(table).double()
    if bool(outcome[counts].isnan().any()):
        raise InvalidData(
            where=WHERE,
            what=f"{int(outcome[counts].isnan().sum())} of {int(counts.sum())} rows have no outcome.",
            remedy="Give `success` in the environment's last `info`.",
        )
    positive = ((table[column] > 0) & counts).double()
    key = table.key("trajectory")
    number = torch.zeros(key.size, dtype=torch.float64).index_add_(0, key.codes, positive).clamp_min(1.0)
    return torch.where(counts, positive / torch.where(outcome >= 1, number[key.codes], most), 0.0).float()


def _most(table: StepTable, counts: Tensor, maximum: int | None) -> Tensor:
    if maximum is not None:
        return torch.full((len(table),), float(maximum), dtype=torch.float64)
    if "maximum" not in table:
        raise _no_maximum()
    most = table["maximum"].double()
    if bool((most[counts] < 1).any()):
        raise InvalidData(
            where=WHERE,
            what=f"a game's `maximum` is {float(most[counts].min()):g}, below 1.",
            remedy="Let the environment give the number of positive rewards that the game can give, at least 1.",
        )
    return most
