"""The types every room shares: tasks, interaction, trajectories, tables, stages. Floor 1."""

from palaestra.data.draws import row_draws, uniform_per_unit
from palaestra.data.entities import named_share
from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
from palaestra.data.seeds import derive
from palaestra.data.segments import (
    Key,
    reverse_scan,
    segment_count,
    segment_equal,
    segment_mean,
    segment_range,
    segment_rank,
    segment_std,
    segment_sum,
)
from palaestra.data.similarity import similar_texts
from palaestra.data.stages import (
    Estimate,
    lambda_return,
    modulate,
    pool,
    reward_to_go,
    standardize,
    token_rewards,
    total_return,
    whiten,
    whitened,
)
from palaestra.data.table import Row, StepTable, rows_of
from palaestra.data.task import Assignment, Task, panel_hash
from palaestra.data.tokens import Aggregation, TokenBatch, aggregate, coefficients, kl_estimate
from palaestra.data.trajectory import Failure, Marks, Step, StopReason, Tail, Trajectory

__all__ = [
    "Action",
    "Aggregation",
    "Assignment",
    "Estimate",
    "Failure",
    "FinishReason",
    "Key",
    "Marks",
    "Observation",
    "Row",
    "Step",
    "StepResult",
    "StepTable",
    "StopReason",
    "Tail",
    "Task",
    "TokenBatch",
    "ToolCall",
    "Trajectory",
    "aggregate",
    "coefficients",
    "derive",
    "kl_estimate",
    "lambda_return",
    "modulate",
    "named_share",
    "panel_hash",
    "pool",
    "reverse_scan",
    "reward_to_go",
    "row_draws",
    "rows_of",
    "segment_count",
    "segment_equal",
    "segment_mean",
    "segment_range",
    "segment_rank",
    "segment_std",
    "segment_sum",
    "similar_texts",
    "standardize",
    "token_rewards",
    "total_return",
    "uniform_per_unit",
    "whiten",
    "whitened",
]
