"""The paper (arXiv 2510.11701) studies which data, algorithm and reasoning style make reinforcement learning with
tools work. Its algorithm GRPO-TCR is GRPO with a mean over tokens (T), a larger upper clip bound (C) and reward
shaping for overlong responses (R). In addition, a wrong answer earns a small bonus for each tool call, always less
than a right answer. The form of the bonus follows the public code. The paper's comparison of real with stitched
trajectories for supervised tuning and its training data chosen by difficulty are not here, and the recipe has a
calculator in place of a code interpreter. This file is the reward `tool_bonus`; the price `overlong` is in
`palaestra/parts/rewards.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.parts.tool_calls import at_the_end, outcomes, refuse, total_of
from palaestra.registry import NonNegative, register

WHERE = "reward: tool_bonus"


@register(
    "reward",
    "tool_bonus",
    reads=("outcome", "tool_call", "truncated?"),
    writes=("reward", "tool_bonus"),
    source="arXiv 2510.11701, public code",
)
def tool_bonus(
    table: StepTable, *, bonus: NonNegative = 0.1, right: float = 1.0, wrong: float = -1.0, cap: float = -0.6
) -> dict[str, Float[Tensor, " rows"]]:
    """Pay the answer, and for a wrong answer a little for each call, at the end of a trajectory.

        R = right                                if the outcome is 1
        R = min(cap, wrong + bonus · calls)      if it is 0

    In a dialogue of m messages, including the question and the answer, calls = (m − 2) / 2.

    Args:
        table: columns outcome, 0 or 1, and tool_call, how many calls a step made.
        bonus: ≥ 0, for each call. Higher: the policy starts to use tools sooner. Usual: 0.1; 0 is the ablation.
        right: reward of a right answer, whatever its calls. Usual: 1.
        wrong: reward of a wrong answer without calls. Usual: −1.
        cap: the largest reward of a wrong answer; in [wrong, right). Usual: −0.6.

    Returns: reward, in place of the environment's, and tool_bonus, the part of it for calls, each float32 (rows,).
        `bonus: 0, wrong: 0, cap: 0` is the reward `outcome`.
    Raises: MissingColumn, without one of the columns; InvalidData, for another outcome or a negative count;
        RecipeError, for a cap outside [wrong, right).
    """
    if not wrong <= cap < right:
        raise RecipeError(
            where=WHERE,
            what=f"`cap: {cap:g}` is not in [`wrong: {wrong:g}`, `right: {right:g}`).",
            remedy="Set `cap` so that `wrong` ≤ `cap` < `right`: a wrong answer earns less than a right one.",
        )
    result, made = outcomes(table, where=WHERE, binary=True), table["tool_call"]
    refuse(
        table,
        ~(made >= 0),
        lambda row: f"{float(made[row]):g} tool calls.",
        where=WHERE,
        remedy="Let the environment give `tool_call`, the number of calls of each act, at least 0.",
    )
    failed = (wrong + bonus * total_of(table, made)).clamp_max(cap)
    reward = at_the_end(table, torch.where(result == 1, right, failed))
    return {"reward": reward, "tool_bonus": at_the_end(table, torch.where(result == 1, 0.0, failed - wrong))}
