"""A judge that errs: scores of steps, some of them turned round.

Knows scores in [0, 1] and a seed. Knows nothing of what is judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.data import StepTable, derive
from palaestra.data.iteration import Iteration
from palaestra.registry import Fraction, register


@register("reward", "noisy_judge", reads=("process",), source="ours, to test what methods bear")
class NoisyJudge:
    """Keep a score with probability `accuracy`, else exchange it for 1 − score.

    Stands before the part that reads `process`. Which scores are turned round depends on the run's seed, the iteration
    and the row alone, so a resumed run repeats them; rows without score stay without.

    Args:
        accuracy: in [0, 1]. 1 changes nothing, 0.5 makes scores of 0 and 1 worthless. Usual: 0.6–0.8, as judges of
            open answers have.
    """

    def __init__(self, *, accuracy: Fraction = 0.8) -> None:
        self.accuracy = accuracy
        self.turned = 0.0

    def __call__(self, table: StepTable, iteration: Iteration) -> dict[str, Tensor]:
        score = table["process"]
        draw = np.random.default_rng(derive(iteration.seed, "noisy_judge")).random(len(table))
        errs = torch.from_numpy(draw >= self.accuracy) & ~score.isnan()
        self.turned = float(errs.double().sum() / (~score.isnan()).double().sum().clamp_min(1.0))
        return {"process": torch.where(errs, 1 - score, score)}

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
        return {"judge/turned": self.turned}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
