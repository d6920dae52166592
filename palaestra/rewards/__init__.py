"""Rewards: a table to a new reward column, one after the other. Floor 2."""

from palaestra.rewards.counterfactual import counterfactual
from palaestra.rewards.cut_outcome import cut_outcome
from palaestra.rewards.defense_schedule import DefenseSchedule
from palaestra.rewards.dense_normalized import dense_normalized
from palaestra.rewards.dense_then_sparse import DenseThenSparse
from palaestra.rewards.entity_credit import entity_credit
from palaestra.rewards.environment import environment
from palaestra.rewards.equal_split import equal_split
from palaestra.rewards.function_calls import function_calls
from palaestra.rewards.game_shaping import game_shaping
from palaestra.rewards.gui_action import GuiAction
from palaestra.rewards.hierarchical import hierarchical
from palaestra.rewards.implicit_process import ImplicitProcess
from palaestra.rewards.interaction import interaction
from palaestra.rewards.intrinsic_tool import IntrinsicTool
from palaestra.rewards.invalid_penalty import invalid_penalty
from palaestra.rewards.milestones import milestones
from palaestra.rewards.noisy_judge import NoisyJudge
from palaestra.rewards.outcome import outcome
from palaestra.rewards.overlong import overlong
from palaestra.rewards.progress import Progress
from palaestra.rewards.question_difficulty import question_difficulty
from palaestra.rewards.renorm import renorm
from palaestra.rewards.resource_penalty import resource_penalty
from palaestra.rewards.role_mix import role_mix
from palaestra.rewards.running_scale import RunningScale
from palaestra.rewards.self_consistency import self_consistency
from palaestra.rewards.shapley import shapley_credit
from palaestra.rewards.step_judge import StepJudge
from palaestra.rewards.token_budget import token_budget
from palaestra.rewards.tool_bonus import tool_bonus
from palaestra.rewards.tool_penalties import tool_penalties
from palaestra.rewards.tool_use import tool_use

__all__ = [
    "DefenseSchedule",
    "DenseThenSparse",
    "GuiAction",
    "ImplicitProcess",
    "IntrinsicTool",
    "NoisyJudge",
    "Progress",
    "RunningScale",
    "StepJudge",
    "counterfactual",
    "cut_outcome",
    "dense_normalized",
    "entity_credit",
    "environment",
    "equal_split",
    "function_calls",
    "game_shaping",
    "hierarchical",
    "interaction",
    "invalid_penalty",
    "milestones",
    "outcome",
    "overlong",
    "question_difficulty",
    "renorm",
    "resource_penalty",
    "role_mix",
    "self_consistency",
    "shapley_credit",
    "token_budget",
    "tool_bonus",
    "tool_penalties",
    "tool_use",
]
