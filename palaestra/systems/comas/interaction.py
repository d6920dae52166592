"""Interaction rewards: what one agent says of another's solution pays both, in opposite ways.

Knows the discussions of a table, who solved, evaluated and scored in each, and the scores. Knows no right answer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, derive
from palaestra.errors import InvalidData
from palaestra.registry import register

SOLVER, EVALUATOR, SCORER = DUTIES = ("solver", "evaluator", "scorer")
WHERE = "reward: interaction"


@register(
    "reward",
    "interaction",
    reads=("stratum", "discussion", "score"),
    writes=("reward",),
    source="arXiv 2510.08529",
)
def interaction(
    table: StepTable, *, scores: Literal["scorer", "random"] = "scorer", seed: int = 0
) -> Float[Tensor, " rows"]:
    """The score of a discussion becomes the solver's reward and, against it, the evaluator's.

        s in {1, 2, 3}:    q = (s − 1) / 2;    solver q,    evaluator 1 − q,    scorer 0
        s unreadable:                          solver 0,    evaluator 0,        scorer −1

    Solver and evaluator play for a sum of 1; the scorer is only taught to be readable.

    Args:
        table: columns trajectory, discussion, stratum ("solver", "evaluator" or "scorer") and score (0: unreadable; it
            counts in rows of scorers), each (rows,).
        scores: "random" draws readable scores anew for each discussion, whatever the scorer says: a control.
        seed: of those draws.

    Returns: float32 (rows,). Nothing else of the table is read, outcomes least of all.
    Raises: InvalidData, for a score that is none, a discussion without exactly one solver, evaluator and scorer, or
        rewards that somebody paid already: a program that lets the environment's judgment into the training.
    """
    if bool((table["reward"] != 0).any()):
        raise InvalidData(
            where=WHERE,
            what=f"{int((table['reward'] != 0).sum())} rows have a reward already, from what knows the right answer.",
            remedy="Take back what the environment pays, as the program `discussion` does, and leave out other rewards "
            "before this one.",
        )
    names = table.labels("stratum")
    duty = [torch.tensor([name == one for name in names] + [False])[table["stratum"]] for one in DUTIES]
    talks = table.key("trajectory", "discussion")
    for one, rows in zip(DUTIES, duty, strict=True):
        count = torch.zeros(talks.size).index_add_(0, talks.codes, rows.float())
        if bool((count != 1).any()):
            raise InvalidData(where=WHERE, what=f"{int((count != 1).sum())} discussions do not have one {one}.")
    said = torch.where(duty[2], table["score"].double(), 0.0)
    if bool(((said != said.round()) | (said < 0) | (said > 3)).any()):
        raise InvalidData(where=WHERE, what="a score is none of 1, 2, 3 and 0, which is for unreadable ones.")
    score = torch.zeros(talks.size, dtype=torch.float64).index_add_(0, talks.codes, said)
    if scores == "random":
        score = _drawn(table, talks.codes, talks.size, seed).double()
    readable, quality = (score > 0)[talks.codes], ((score - 1) / 2)[talks.codes]
    paid = torch.where(duty[0], quality, torch.where(duty[1], 1 - quality, 0.0))
    return torch.where(readable, paid, torch.where(duty[2], -1.0, 0.0)).float()


def _drawn(table: StepTable, codes: Tensor, size: int, seed: int) -> Tensor:
    """A score for each discussion that depends on nothing but its name."""
    labels, found = table.labels("trajectory"), np.zeros(size, np.int64)
    for code, trajectory, number in zip(
        codes.tolist(), table["trajectory"].tolist(), table["discussion"].tolist(), strict=True
    ):
        found[code] = 1 + derive(seed, "score", str(labels[trajectory]), float(number)) % 3
    return torch.from_numpy(found)
