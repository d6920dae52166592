"""A scripted judge of steps: it knows the truth and errs at a chosen rate.

Knows the column `process`. Knows nothing of what made a step good.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palaestra.algebra import row_draws
from palaestra.data import StepTable
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData
from palaestra.registry import Fraction, register


@register("reward", "step_judge", reads=("process",), source="arXiv 2511.10395, experiments")
class StepJudge:
    """Flag steps as good or bad, wrongly with a chosen probability: what a judge is worth at which accuracy.

        good = [process > threshold], exchanged with probability `noise`

    Which flags are exchanged depends on the iteration's seed and on which act a row is, not on the order of rows.

    Args:
        threshold: a step of more true quality is good. Usual: 0.5, for qualities 0 and 1.
        noise: in [0, 1]. 0: an oracle; 0.5: a judge that guesses; 1: one that says the opposite. Usual: 0.1.

    The column `process` (rows,) is a step's true quality, given by the environment. The column `good` (rows,)
    is 1 or 0, as `adca_grpo` reads it; rewards stay as they are.

    Raises: InvalidData, if a step has no quality.
    """

    provides = frozenset({"good"})

    def __init__(self, *, threshold: float = 0.5, noise: Fraction = 0.1) -> None:
        self._threshold, self._noise = threshold, noise

    def __call__(self, table: StepTable, iteration: Iteration) -> dict[str, Tensor]:
        quality, counts = table["process"], table.row_weight > 0
        missing = (~quality.isfinite() & counts).nonzero()
        if len(missing):
            raise InvalidData(
                where=f"reward: step_judge, row {int(missing[0, 0])}",
                what=f"{len(missing)} of {int(counts.sum())} steps have no quality in the column `process`.",
                remedy='Give it for each step in the environment\'s `info`: {"process": {agent: 1.0}}.',
            )
        wrong = row_draws(table, seed=iteration.seed, purpose="step_judge") < self._noise
        good = (quality > self._threshold) != wrong
        return {"good": torch.where(counts, good, False).float()}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the judge remembers nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""
