"""PPO-max (arXiv 2307.04964) is a set of measures that keep PPO stable when it learns from a reward model. Rewards are
divided by the deviation of all returns of the run, each token pays for leaving a reference policy, and the losses of
policy and critic are clipped. The authors find the KL term most important. Here the scaling is a part of its own, and a
hand-written score stands in for the reward model. A trained reward model, a critic that starts from it and the PTX loss
are not here. This file is the scaling `running_scale`; the estimator `ppo_max` is in `palaestra/parts/critics.py`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import total_return
from palaestra.data import Batch, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import InvalidData
from palaestra.registry import Positive, register


@register("reward", "running_scale", reads=(), writes=("reward",), source="arXiv 2307.04964")
class RunningScale(StatefulPart):
    """Divide rewards by the deviation of all returns of the run, this batch's included.

        R_i = Σ rewards of trajectory i        n, mean, M₂ = Σ (R − mean)² are merged batch by batch
        r ← (r − [last row] · mean) / sqrt(M₂ / (n − 1))        the mean with `center` only

    For an answer that is scored once, R_i is that score. Rewards are not divided while all returns are equal.

    Args:
        center: also subtract the running mean, on each trajectory's last row.
        clip: > 0, the largest size of a reward afterwards; None: no bound. Lower: rare scores count less. Usual: 10.

    Raises: InvalidData, while the run has fewer than 2 trajectories.
    """

    def __init__(self, *, center: bool = False, clip: Positive | None = 10.0) -> None:
        self.center, self.clip = center, clip
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    @property
    def std(self) -> float:
        """The sample deviation of all returns so far."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        order, last = table.timeline("trajectory")
        ends = order[last]
        ends = ends[table.row_weight[ends] > 0]
        self._merge(total_return(table)[ends].double())
        if self.count < 2:
            raise InvalidData(
                where="reward: running_scale",
                what=f"the run has {self.count} returns so far; a deviation needs 2.",
                remedy="Sample at least 2 episodes in the first iteration: rollout.tasks × rollout.group.",
            )
        reward = table["reward"].double()
        if self.center:
            reward = reward.index_add(0, ends, torch.full((len(ends),), -self.mean, dtype=torch.float64))
        if self.std > 1e-8 * max(1.0, abs(self.mean)):  # a smaller deviation is rounding
            reward = reward / self.std
        if self.clip is not None:
            reward = reward.clamp(-self.clip, self.clip)
        return torch.where(table.row_weight > 0, reward, 0.0).float()

    def _merge(self, returns: Float[Tensor, " trajectories"]) -> None:
        """Merge the batch's moments with those of earlier batches."""
        new = len(returns)
        if new == 0:
            return
        mean, total = float(returns.mean()), self.count + new
        gap = mean - self.mean
        self.squares += float((returns - mean).square().sum()) + gap * gap * self.count * new / total
        self.mean += gap * new / total
        self.count = total

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        return {"reward/running_mean": self.mean, "reward/running_std": self.std}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])
