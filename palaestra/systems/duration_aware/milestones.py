"""Partial credit for failed programs by the milestones that they reached; it is always below a valid result."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.parts.tool_calls import refuse
from palaestra.registry import NonNegative, PositiveInt, register

WHERE = "reward: milestones"


@register(
    "reward",
    "milestones",
    reads=("valid", "milestones"),
    writes=("reward", "milestone_reward"),
    source="arXiv 2509.01684",
)
def milestones(
    table: StepTable, *, base: float = -10.0, each: NonNegative = 0.1, most: PositiveInt = 5, lowest: float = 0.0
) -> dict[str, Float[Tensor, " rows"]]:
    """Pay a valid result its score, and an invalid one the milestones that it reached.

        r = reward                       if the act's result is valid
        r = base + each · milestones     if it is not

    Args:
        table: columns reward, the score of a valid result; valid, 0 or 1; milestones, how many an act reached.
        base: reward of an act that reached no milestone. Usual: −10.
        each: ≥ 0, reward of a milestone. 0: no partial credit. Usual: 0.1.
        most: number of milestones that can be reached.
        lowest: the smallest score that a valid result can have. Usual: 0.

    Returns: reward, and milestone_reward, the part of it that is partial credit, each float32 (rows,). Valid results
        keep their reward.
    Raises: RecipeError, if all milestones together earn as much as a valid result; MissingColumn, without one of the
        columns; InvalidData, if `valid` is not 0 or 1, or for counts outside [0, most].
    """
    if base + each * most >= lowest:
        raise RecipeError(
            where=WHERE,
            what=f"{most} milestones earn {base + each * most:g}, but a valid result may earn only {lowest:g}.",
            remedy="Lower `base` or `each`, so that partial credit stays below any valid score.",
        )
    valid, count = table["valid"], table["milestones"]
    refuse(
        table,
        ~((valid == 0) | (valid == 1)),
        lambda row: f"`valid` is {float(valid[row]):g}.",
        where=WHERE,
        remedy="Let the environment give `valid`: 1 for a valid result, else 0.",
    )
    refuse(
        table,
        ~((count >= 0) & (count <= most)),
        lambda row: f"{float(count[row]):g} milestones of {most}.",
        where=WHERE,
        remedy="Set `most` to the number of milestones.",
    )
    partial = (base + each * count.double()).float()
    failed = (valid == 0) & (table.row_weight > 0)
    reward = torch.where(failed, partial, table["reward"])
    return {"reward": reward, "milestone_reward": torch.where(failed, partial - base, 0.0).float()}
