"""A judge that errs: scores of steps, some of them turned round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Iteration, StepTable, derive
from palaestra.registry import Fraction, register


@register("reward", "noisy_judge", reads=("process",), writes=("process",), source="ours, to test what methods bear")
def noisy_judge(table: StepTable, iteration: Iteration, *, accuracy: Fraction = 0.8) -> dict[str, Tensor]:
    """Keep a score with probability `accuracy`, else exchange it for 1 − score.

    Stands before the part that reads `process`. Which scores are turned round depends on the run's seed, the iteration
    and the row alone, so a resumed run repeats them; rows without score stay without.

    Args:
        table: column process (rows,), scores in [0, 1] or NaN.
        accuracy: in [0, 1]. 1 changes nothing, 0.5 makes scores of 0 and 1 worthless. Usual: 0.6–0.8, as judges of
            open answers have.

    Returns: the column `process`, float32 (rows,).
    Metrics: judge/turned, the share of scores that were exchanged.
    """
    score = table["process"]
    draw = np.random.default_rng(derive(iteration.seed, "noisy_judge")).random(len(table))
    errs = torch.from_numpy(draw >= accuracy) & ~score.isnan()
    iteration.metrics["judge/turned"] = float(errs.double().sum() / (~score.isnan()).double().sum().clamp_min(1.0))
    return {"process": torch.where(errs, 1 - score, score)}
