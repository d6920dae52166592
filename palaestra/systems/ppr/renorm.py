"""The reward `renorm` (ReNorm): it centers a judge's step scores and the episode's outcome together."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Fraction, Positive, register


@register(
    "reward",
    "renorm",
    reads=("process", "outcome", "truncated?"),
    writes=("reward",),
    source="arXiv 2509.25598",
)
def renorm(
    table: StepTable, *, shift: Fraction = 1.0, process_weight: Fraction = 1.0, maximum: Positive = 1.0
) -> Float[Tensor, " rows"]:
    """Reward a step for its own score and for the outcome, so that the outcome decides the sign.

        r_k = w · p_k + o − shift · (w + 1) / 2        every step but the final answer, p_k = process / maximum
        r_K = o − shift / 2                            the final answer, which has no score

    With shift 1 no step of a failed episode has a positive reward, and no step of a solved one a negative reward. With
    shift 0 this is the plain sum, in which a failed episode earns more the longer it is.

    Args:
        table: columns trajectory, turn; process (rows,) in [0, maximum], NaN on the final step; outcome (rows,) in [0,
            1]. A truncated episode may have a score on its last step too.
        shift: in [0, 1]. 1 is ReNorm, 0 the plain sum. Usual: 1.
        process_weight: w, in [0, 1]. Lower: the outcome counts more. Usual: 1.
        maximum: > 0, the highest score that the judge can give. Usual: 1.

    Returns: float32 (rows,), in place of the environment's rewards; 0 on padding.
    Raises: MissingColumn, without scores or outcomes; InvalidData, for one of them outside its range, a step without a
        score, or a final step with one.
    """
    score, outcome = table["process"].double() / maximum, outcomes_of(table).double()
    counts = table.row_weight > 0
    _refuse_out_of_range("process", score, counts & ~score.isnan(), maximum)
    _refuse_out_of_range("outcome", outcome, counts, 1.0)
    final = _final(table, score, counts)
    judged = process_weight * score + outcome - shift * (process_weight + 1) / 2
    reward = torch.where(final, outcome - shift / 2, judged)
    return torch.where(counts, reward, 0.0).float()


def _final(table: StepTable, score: Float[Tensor, " rows"], counts: Bool[Tensor, " rows"]) -> Bool[Tensor, " rows"]:
    """Last rows without a score; every other row must have one.

    Raises: InvalidData, naming the row.
    """
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last)
    cut = table["truncated"] if "truncated" in table else torch.zeros_like(ends)
    silent = score.isnan()
    for faulty, what, remedy in (
        (counts & ~ends & silent, "it is not the final step and has no score", "Let the judge score every step."),
        (counts & ends & ~cut & ~silent, "it is the final step and has a score", "Leave `process` out there (NaN)."),
    ):
        if bool(faulty.any()):
            row = int(faulty.nonzero()[0])
            name = table.labels("trajectory")[int(table["trajectory"][row])]
            raise InvalidData(
                where=f"reward: renorm, trajectory {name}, turn {int(table['turn'][row])}",
                what=f"{what}, as {int(faulty.sum())} of {int(counts.sum())} rows.",
                remedy=remedy,
            )
    return ends & silent


def _refuse_out_of_range(name: str, values: Tensor, counts: Tensor, maximum: float) -> None:
    """Raise InvalidData if a value that counts, divided by its maximum, is not in [0, 1]."""
    wrong = counts & ~((values >= 0) & (values <= 1))  # NaN counts as outside
    if bool(wrong.any()):
        first = float(values[wrong][0]) * maximum
        raise InvalidData(
            where=f"reward: renorm, column `{name}`",
            what=f"{int(wrong.sum())} of {len(values)} values are not in [0, {maximum:g}]; the first is {first:g}.",
            remedy="Set `maximum` to the highest score that the judge can give.",
        )
