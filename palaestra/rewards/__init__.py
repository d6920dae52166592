"""Rewards: a table to a new reward column, one after the other. Floor 2."""

from palaestra.rewards.defense_schedule import DefenseSchedule
from palaestra.rewards.dense_then_sparse import DenseThenSparse
from palaestra.rewards.entity_credit import entity_credit
from palaestra.rewards.environment import environment
from palaestra.rewards.equal_split import equal_split
from palaestra.rewards.game_shaping import game_shaping
from palaestra.rewards.hierarchical import hierarchical
from palaestra.rewards.implicit_process import ImplicitProcess
from palaestra.rewards.intrinsic_tool import IntrinsicTool
from palaestra.rewards.invalid_penalty import invalid_penalty
from palaestra.rewards.noisy_judge import NoisyJudge
from palaestra.rewards.outcome import outcome
from palaestra.rewards.progress import Progress
from palaestra.rewards.renorm import renorm
from palaestra.rewards.resource_penalty import resource_penalty
from palaestra.rewards.running_scale import RunningScale
from palaestra.rewards.step_judge import StepJudge

__all__ = [
    "DefenseSchedule",
    "DenseThenSparse",
    "ImplicitProcess",
    "IntrinsicTool",
    "NoisyJudge",
    "Progress",
    "RunningScale",
    "StepJudge",
    "entity_credit",
    "environment",
    "equal_split",
    "game_shaping",
    "hierarchical",
    "invalid_penalty",
    "outcome",
    "renorm",
    "resource_penalty",
]
