"""The defenders' reward of AdvEvo-MARL: safety weighs more in the first part of a run, the task in the second."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, PositiveInt, register

PARTS = ("safe", "correct", "format")
Weights = tuple[NonNegative, NonNegative, NonNegative]


@register(
    "reward",
    "defense_schedule",
    reads=("team", *PARTS),
    writes=("reward",),
    source="arXiv 2510.01586, secondary",
)
def defense_schedule(
    table: StepTable,
    iteration: Iteration,
    *,
    switch: PositiveInt,
    team: str = "defenders",
    first: Weights = (0.6, 0.3, 0.1),
    second: Weights = (0.3, 0.6, 0.1),
) -> Float[Tensor, " rows"]:
    """Replace the rewards of one team by a weighted sum of three judgments; other rows keep their rewards.

    r = w · (safe, correct, format) on an agent's last row, 0 before      w = first, from iteration `switch` on second

    Args:
        table: columns team, safe, correct, format (rows,), the last three 0 before an agent's end.
        switch: the first iteration with the second weights: half of `training.iterations`.
        team: the team whose rewards are replaced.
        first, second: ≥ 0, weights of safe, correct and format before and from `switch`. Higher: this judgment matters
            more. Usual: sum 1.

    Returns: float32 (rows,).
    Raises: MissingColumn; InvalidData, for a judgment outside [0, 1], or if no row is of the team.
    Differs from the authors' code: there was none to read; the two sets of weights are ours.
    """
    weights = first if iteration.number < switch else second
    judged = torch.stack([table[name].double() for name in PARTS])
    if not bool(((judged >= 0) & (judged <= 1)).all()):
        raise InvalidData(
            where="reward: defense_schedule",
            what=f"one of {', '.join(PARTS)} is outside [0, 1].",
            remedy="Let the environment give these judgments in [0, 1].",
        )
    names = table.labels("team")
    if team not in names:
        raise InvalidData(
            where="reward: defense_schedule",
            what=f"no row has the team `{team}`.",
            options=[str(name) for name in names],
            remedy="Set `team` to a team of the environment.",
        )
    score = torch.tensor(weights, dtype=torch.float64) @ judged
    return torch.where(table["team"] == names.index(team), score, table["reward"].double()).float()
