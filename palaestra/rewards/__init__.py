"""Rewards: a table to a new reward column, one after the other. Floor 2."""

from palaestra.rewards.dense_then_sparse import DenseThenSparse
from palaestra.rewards.environment import environment
from palaestra.rewards.hierarchical import hierarchical
from palaestra.rewards.invalid_penalty import invalid_penalty
from palaestra.rewards.noisy_judge import NoisyJudge
from palaestra.rewards.outcome import outcome
from palaestra.rewards.renorm import renorm
from palaestra.rewards.running_scale import RunningScale
from palaestra.rewards.step_judge import StepJudge

__all__ = [
    "DenseThenSparse",
    "NoisyJudge",
    "RunningScale",
    "StepJudge",
    "environment",
    "hierarchical",
    "invalid_penalty",
    "outcome",
    "renorm",
]
