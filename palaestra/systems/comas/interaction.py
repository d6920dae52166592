"""Interaction rewards: the score of a solution pays the solver, and one minus the score pays the evaluator."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import uniform_per_unit
from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import register

SOLVER, EVALUATOR, SCORER = DUTIES = ("solver", "evaluator", "scorer")
WHERE = "reward: interaction"


@register(
    "reward",
    "interaction",
    reads=("stratum", "discussion", "score"),
    writes=("reward", "row_weight"),
    source="arXiv 2510.08529",
)
def interaction(
    table: StepTable, iteration: Iteration, *, scores: Literal["scorer", "random"] = "scorer"
) -> dict[str, Float[Tensor, " rows"]]:
    """Turn the score of a discussion into opposite rewards of its solver and its evaluator.

        s in {1, 2, 3}:    q = (s − 1) / 2;    solver q,    evaluator 1 − q,    scorer 0
        s unreadable:                          solver 0,    evaluator 0,        scorer −1

    The rewards of solver and evaluator sum to 1; the scorer is only punished for an unreadable score. A discussion that
    a limit cut off before its score is left out of everything: its rows get the weight 0.

    Args:
        table: columns trajectory, discussion, stratum ("solver", "evaluator" or "scorer") and score (0: unreadable;
            read on rows of scorers only), each (rows,).
        iteration: its seed decides the random scores, and its rows say which episodes were cut off.
        scores: "scorer" uses the scores of the table; "random" draws a readable score for each discussion, as a
            control.

    Returns: "reward" and "row_weight", each float32 (rows,). No other column is read, in particular no outcome.
    Metrics: interaction/left_out, the share of discussions that were cut off.
    Raises: InvalidData, for a score other than 0 to 3, a discussion without exactly one solver, evaluator and scorer,
        or rows that have a reward already: a program that lets the environment's judgment into the training.
    """
    if bool((table["reward"] != 0).any()):
        raise InvalidData(
            where=WHERE,
            what=f"{int((table['reward'] != 0).sum())} rows have a reward already, which may come from the truth.",
            remedy="Subtract the environment's reward, as the program `discussion` does, and remove the reward parts "
            "before this one.",
        )
    names = table.labels("stratum")
    duty = [torch.tensor([name == one for name in names] + [False])[table["stratum"]] for one in DUTIES]
    talks = table.key("trajectory", "discussion")
    is_cut, ends = torch.zeros((2, talks.size), dtype=torch.bool)
    is_cut[talks.codes[_cut(iteration, len(table))]], ends[talks.codes[duty[2]]] = True, True
    for one, rows in zip(DUTIES, duty, strict=True):
        count = torch.zeros(talks.size).index_add_(0, talks.codes, rows.float())
        wrong = (count > 1) | ((count == 0) & ~is_cut)
        if bool(wrong.any()):
            raise InvalidData(
                where=WHERE,
                what=f"{int(wrong.sum())} discussions do not have exactly one {one}.",
                remedy="Give each discussion of a trajectory one row per `stratum`, as the program `discussion` does.",
            )
    said = torch.where(duty[2], table["score"].double(), 0.0)
    if bool(((said != said.round()) | (said < 0) | (said > 3)).any()):
        raise InvalidData(
            where=WHERE,
            what="a score is not 0 (unreadable), 1, 2 or 3.",
            remedy="Let the program give one of these as `score` of the scorer's row.",
        )
    score = torch.zeros(talks.size, dtype=torch.float64).index_add_(0, talks.codes, said)
    if scores == "random":
        score = _drawn(table, talks.codes, talks.size, seed=iteration.seed)
    readable, quality = (score > 0)[talks.codes], ((score - 1) / 2)[talks.codes]
    paid = torch.where(duty[0], quality, torch.where(duty[1], 1 - quality, 0.0))
    reward = torch.where(readable, paid, torch.where(duty[2], -1.0, 0.0)).float()
    iteration.metrics["interaction/left_out"] = float((~ends).float().mean())
    return {"reward": reward, "row_weight": table.row_weight * ends[talks.codes]}


def _cut(iteration: Iteration, size: int) -> Tensor:
    """Whether a limit cut off the episode of each row. The column `truncated` does not tell it, since the environment
    ends with each solution: bool (rows,).
    """
    cut = [row.trajectory.stop.cut for row in iteration.rows]
    return torch.tensor(cut or [False] * size)


def _drawn(table: StepTable, codes: Tensor, size: int, *, seed: int) -> Tensor:
    """A random score, 1, 2 or 3, for each discussion: float64 (discussions,)."""
    draws = uniform_per_unit(table, ("trajectory", "discussion"), seed=seed, purpose="score")
    return torch.zeros(size, dtype=torch.float64).index_copy_(0, codes, 1 + (3 * draws).floor())
