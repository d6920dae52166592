"""The reward part `noisy_judge`: it makes some of a judge's step scores wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Iteration, StepTable, derive
from palaestra.registry import Fraction, register


@register("reward", "noisy_judge", reads=("process",), writes=("process",), source="ours, to test what methods bear")
def noisy_judge(table: StepTable, iteration: Iteration, *, accuracy: Fraction = 0.8) -> dict[str, Tensor]:
    """Keep a score with probability `accuracy`, else replace it by 1 − score.

    Put it before the part that reads `process`. Which scores change depends only on the run's seed, the iteration and
    the row, so a resumed run repeats them. Rows without a score keep none.

    Args:
        table: column process (rows,), scores in [0, 1] or NaN.
        accuracy: in [0, 1]. 1 changes nothing; 0.5 removes all information from scores of 0 and 1. Usual: 0.6–0.8,
            which judges of open answers reach.

    Returns: the column `process`, float32 (rows,).
    Metrics: judge/turned, the share of scores that were replaced.
    """
    score = table["process"]
    draw = np.random.default_rng(derive(iteration.seed, "noisy_judge")).random(len(table))
    errs = torch.from_numpy(draw >= accuracy) & ~score.isnan()
    iteration.metrics["judge/turned"] = float(errs.double().sum() / (~score.isnan()).double().sum().clamp_min(1.0))
    return {"process": torch.where(errs, 1 - score, score)}
