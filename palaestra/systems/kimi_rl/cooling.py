"""Cooling: a sampling temperature that changes in the course of a run. Knows iterations. Knows no policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from palaestra.data import Play, Trajectory
from palaestra.registry import Positive, PositiveInt, register
from palaestra.rollout.strategies import RolloutContext


@register("strategy", "cooling", source="arXiv 2507.20534")
class Cooling:
    """Sample at a temperature that goes evenly from `rollout.temperature` to another one.

        T_s = T₀ + (end − T₀) · min(1, s / iterations)        in iteration s = 0, 1, …

    Explore first, then sharpen. Log-probabilities of actions are those at T_s; the update reads the policy at T₀, and
    `weights: truncated_importance` accounts for the difference.

    Args:
        end: > 0, temperature from iteration `iterations` on. Lower: sharper at the end. Usual: 0.6–1 times T₀.
        iterations: in which it is reached.
    """

    called_per = "group"

    def __init__(self, *, end: Positive, iterations: PositiveInt) -> None:
        self.end, self.iterations = end, iterations

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play all at this iteration's temperature."""
        start, done = rollout.sampling.temperature, min(1.0, rollout.step / self.iterations)
        temperature = start + (self.end - start) * done
        rollout.metrics["sampling/temperature"] = temperature
        sampling = dataclasses.replace(rollout.sampling, temperature=temperature)
        return await rollout.with_(sampling=sampling).collect(plays)
