"""Samplers: which tasks an iteration plays. Floor 2."""

from palaestra.curriculum.adaptive_rollouts import AdaptiveRollouts
from palaestra.curriculum.repeated import Repeated
from palaestra.curriculum.uniform import uniform

__all__ = [
    "AdaptiveRollouts",
    "Repeated",
    "uniform",
]
