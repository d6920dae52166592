"""What flows between rooms: tasks, interaction, trajectories, tables and token batches."""

from typing import TYPE_CHECKING

from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
from palaestra.data.iteration import Iteration
from palaestra.data.keys import Key
from palaestra.data.seeds import derive
from palaestra.data.setup import RunSetup
from palaestra.data.table import Row, StepTable, rows_of
from palaestra.data.task import Play, Task, panel_hash
from palaestra.data.tokens import TokenBatch
from palaestra.data.trajectory import Failure, Marks, NextPrompt, Step, StopReason, Trajectory
from palaestra.former import former_names

__all__ = [
    "Action",
    "Failure",
    "FinishReason",
    "Iteration",
    "Key",
    "Marks",
    "NextPrompt",
    "Observation",
    "Play",
    "Row",
    "RunSetup",
    "Step",
    "StepResult",
    "StepTable",
    "StopReason",
    "Task",
    "TokenBatch",
    "ToolCall",
    "Trajectory",
    "derive",
    "panel_hash",
    "rows_of",
]

if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = former_names(__name__, {"Assignment": "`Play` now", "Tail": "`NextPrompt` now"})
