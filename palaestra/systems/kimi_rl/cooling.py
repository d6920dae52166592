"""The strategy `cooling`: a sampling temperature that changes linearly during a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from palaestra.data import Play, Trajectory
from palaestra.registry import Positive, PositiveInt, register
from palaestra.rollout.strategies import RolloutContext


@register("strategy", "cooling", source="arXiv 2507.20534")
class Cooling:
    """Sample at a temperature that goes linearly from `rollout.temperature` to another one.

        T_s = T₀ + (end − T₀) · min(1, s / iterations)        in iteration s = 0, 1, …

    A falling temperature explores first and sharpens later. The log-probabilities of actions are those at T_s. The
    update evaluates the policy at T₀, and `weights: truncated_importance` corrects for the difference.

    Args:
        end: > 0, the temperature from iteration `iterations` on. Lower: less exploration at the end. Usual: 0.6–1 times
            T₀.
        iterations: how many iterations it takes to reach `end`.
    """

    called_per = "group"

    def __init__(self, *, end: Positive, iterations: PositiveInt) -> None:
        self.end, self.iterations = end, iterations

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play all plays at this iteration's temperature."""
        start, done = rollout.sampling.temperature, min(1.0, rollout.step / self.iterations)
        temperature = start + (self.end - start) * done
        rollout.metrics["sampling/temperature"] = temperature
        sampling = dataclasses.replace(rollout.sampling, temperature=temperature)
        return await rollout.with_(sampling=sampling).collect(plays)
