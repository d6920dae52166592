"""What flows between rooms: tasks, interaction, trajectories, tables and token batches."""

from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
from palaestra.data.iteration import Iteration
from palaestra.data.keys import Key
from palaestra.data.seeds import derive
from palaestra.data.table import Row, StepTable, rows_of
from palaestra.data.task import Assignment, Task, panel_hash
from palaestra.data.tokens import TokenBatch
from palaestra.data.trajectory import Failure, Marks, Step, StopReason, Tail, Trajectory

__all__ = [
    "Action",
    "Assignment",
    "Failure",
    "FinishReason",
    "Iteration",
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
    "derive",
    "panel_hash",
    "rows_of",
]
