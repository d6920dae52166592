"""A scripted judge of steps: it reads the true quality of each step and errs with a chosen probability."""

from __future__ import annotations

import torch
from torch import Tensor

from palaestra.algebra import row_draws
from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Fraction, register


@register("reward", "step_judge", reads=("process",), writes=("good",), source="arXiv 2511.10395, experiments")
def step_judge(
    table: StepTable, iteration: Iteration, *, threshold: float = 0.5, noise: Fraction = 0.1
) -> dict[str, Tensor]:
    """Flag each step as good or bad, and reverse a flag with a chosen probability.

        good = [process > threshold], reversed with probability `noise`

    A study uses it to show how accurate a judge must be. Which flags are reversed depends on the iteration's seed and
    on the step (trajectory and turn), not on the order of rows.

    Args:
        table: column process (rows,), the true quality of each step, given by the environment.
        threshold: a step with a quality above this is good. Usual: 0.5, for qualities 0 and 1.
        noise: in [0, 1], the probability of a wrong flag. 0: no errors; 0.5: a judge that guesses; 1: every flag is
            wrong. Usual: 0.1.

    Returns: the column `good`, 1 or 0, float32 (rows,), which `adca_grpo` reads; rewards do not change.
    Raises: MissingColumn; InvalidData, if a step has no quality.
    """
    quality, counts = table["process"], table.row_weight > 0
    missing = (~quality.isfinite() & counts).nonzero()
    if len(missing):
        raise InvalidData(
            where=f"reward: step_judge, row {int(missing[0, 0])}",
            what=f"{len(missing)} of {int(counts.sum())} steps have no quality in the column `process`.",
            remedy='Give it for each step in the environment\'s `info`: {"process": {agent: 1.0}}.',
        )
    wrong = row_draws(table, seed=iteration.seed, purpose="step_judge") < noise
    good = (quality > threshold) != wrong
    return {"good": torch.where(counts, good, False).float()}
