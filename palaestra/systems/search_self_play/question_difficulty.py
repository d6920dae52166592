"""The reward `question_difficulty`: the proposer is paid for questions that the solver seldom answers."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import cut_off
from palaestra.registry import Fraction, register

WHERE = "reward: question_difficulty"


@register(
    "reward",
    "question_difficulty",
    reads=("valid", "solved", "truncated?"),
    writes=("reward",),
    source="arXiv 2510.18821",
)
def question_difficulty(
    table: StepTable,
    *,
    form: Literal["unsolved", "balanced", "format"] = "unsolved",
    left: Fraction = 0.0,
    right: Fraction = 1.0,
    penalty: float = 0.0,
    role: str = "proposer",
) -> Float[Tensor, " rows"]:
    """Set the reward of a proposer's last row by the difficulty of its question; all other rows keep their reward.

        unsolved    1 − p                                 p: share of the attempts that were right
        balanced    4 (left + p)(right − p)  if 0 < p < 1, else 0
        format      1
        a question that does not count, whatever the form: penalty

    A question does not count either if a limit cut the episode off before all attempts at it.

    Args:
        table: columns agent, trajectory, turn, reward; valid (rows,), 1 on the last row of a proposer whose question
            counts; solved (rows,), p on that row.
        form: "unsolved" pays most for questions that are never answered, so each question must be known to have an
            answer; "balanced" pays most for questions that are answered half the time; "format" pays every question
            that counts. Usual: unsolved.
        left, right: of "balanced". left above 0 pays more for easy questions, right below 1 for hard ones.
        penalty: the reward of a question that does not count. Lower: proposers take fewer risks. Usual: 0.
        role: the proposer's name.

    Returns: float32 (rows,).
    Raises: RecipeError, unless left < right; InvalidData, for p outside [0, 1].
    """
    if left >= right:
        raise RecipeError(
            where=WHERE,
            what=f"`left: {left:g}` is not below `right: {right:g}`.",
            remedy="Give a `left` that is smaller than `right`; usual: 0 and 1.",
        )
    order, last = table.timeline("trajectory", "agent")
    ends = torch.zeros(len(table), dtype=torch.bool)
    ends[order[last]] = True
    own = torch.tensor([label == role for label in table.labels("agent")])[table["agent"]]
    asked, p = ends & own & (table.row_weight > 0), table["solved"].double()
    if bool((asked & ((p < 0) | (p > 1))).any()):
        raise InvalidData(
            where=WHERE,
            what="a value of `solved` lies outside [0, 1].",
            remedy="Let the environment give the share of right attempts.",
        )
    if form == "unsolved":
        worth = 1 - p
    elif form == "balanced":
        worth = torch.where((p > 0) & (p < 1), 4 * (left + p) * (right - p), 0.0)
    else:
        worth = torch.ones_like(p)
    worth = torch.where((table["valid"] > 0) & ~cut_off(table), worth, penalty)
    return torch.where(asked, worth, table["reward"].double()).float()
