"""Samplers: which tasks an iteration plays. Floor 2."""

from palaestra.curriculum.adaptive_rollouts import AdaptiveRollouts
from palaestra.curriculum.growing_horizon import growing_horizon
from palaestra.curriculum.repeated import Repeated
from palaestra.curriculum.stages import Stages
from palaestra.curriculum.success_window import SuccessWindow
from palaestra.curriculum.uniform import uniform

__all__ = [
    "AdaptiveRollouts",
    "Repeated",
    "Stages",
    "SuccessWindow",
    "growing_horizon",
    "uniform",
]
