"""The strategy `adaptive_temperature`: uncertain tokens are sampled at a higher temperature than certain ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import pydantic
import torch
from torch import Tensor

from palaestra.data import Play, Trajectory
from palaestra.registry import Fraction, register
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.hapo.entropy_signal import EntropyScale, SignalTemperature, entropy_scale

Strength = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("strategy", "adaptive_temperature", source="arXiv 2509.16591")
class AdaptiveTemperature:
    """Sample each token at a temperature that depends on its entropy.

        T = T₀ · (1 + strength · h),   h in [−1, 1]: where the entropy at T₀ lies among those of the iteration before

    The first iteration is sampled at T₀. The log-probabilities of actions are those at T. The update evaluates the
    policy at T₀, and `weights: truncated_importance` corrects for the difference. One scale serves the tokens of all
    policies.

    Args:
        strength: in [0, 1). 0 samples everywhere at T₀. Higher: more exploration where the policy is uncertain. Usual:
            0.05; lower it if training collapses.
        quantile: the quantile of the log-entropies at which h is 0. Higher: fewer tokens get a higher temperature.
            Usual: 0.5–0.8.
        released_sign: use |h|, as the authors' released code does, so that no token gets a lower temperature.
    """

    called_per = "iteration"  # each iteration is sampled with the scale of the one before

    def __init__(self, *, strength: Strength = 0.05, quantile: Fraction = 0.8, released_sign: bool = False) -> None:
        self.strength, self.quantile, self.released_sign = strength, quantile, released_sign
        self.scale: EntropyScale | None = None  # made from the iteration before
        self._step, self._seen = -1, torch.zeros(0)  # entropies of iteration `_step`, from all its calls

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play all plays with the temperatures of this iteration, and record their entropies for the next scale."""
        self._enter(rollout.step)
        rule = None
        if self.scale is not None:
            rule = SignalTemperature(scale=self.scale, strength=self.strength, released_sign=self.released_sign)
        sampling = dataclasses.replace(rollout.sampling, entropy=True, entropy_temperature=rule)
        found = await rollout.with_(sampling=sampling).collect(plays)
        entropy = _entropies(found)
        if len(entropy):
            self._seen = torch.cat([self._seen, entropy])
            rollout.metrics["sampling/entropy"] = float(self._seen.mean())
            factor = torch.ones(1) if rule is None else rule.factor(self._seen)
            rollout.metrics["sampling/temperature"] = float(factor.mean()) * rollout.sampling.temperature
        return found

    def _enter(self, step: int) -> None:
        """When a new iteration begins, make its scale from the entropies of the one before."""
        if step == self._step:
            return
        if len(self._seen):
            self.scale = entropy_scale(self._seen, quantile=self.quantile)
        self._step, self._seen = step, torch.zeros(0)

    def state_dict(self) -> dict[str, Any]:
        """The scale, and the entropies that the next scale is made from."""
        scale = None if self.scale is None else dataclasses.asdict(self.scale)
        return {"scale": scale, "step": self._step, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale and the entropies from `state`."""
        self.scale = None if state["scale"] is None else EntropyScale(**state["scale"])
        self._step, self._seen = state["step"], state["seen"]


def _entropies(played: Sequence[Trajectory]) -> Tensor:
    """The entropies of all sampled tokens, float32 (tokens,)."""
    given = [step.action.entropy for trajectory in played for step in trajectory.steps]
    return torch.cat([torch.zeros(0), *(torch.from_numpy(own) for own in given if own is not None)])
