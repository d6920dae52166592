"""What flows between rooms: tasks, interaction, trajectories, tables and token batches."""

from typing import Any

from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
from palaestra.data.iteration import Iteration
from palaestra.data.keys import Key
from palaestra.data.seeds import derive
from palaestra.data.table import Row, StepTable, rows_of
from palaestra.data.task import Play, Task, panel_hash
from palaestra.data.tokens import TokenBatch
from palaestra.data.trajectory import Failure, Marks, Step, StopReason, Tail, Trajectory
from palaestra.errors import ContractError

RENAMED = {"Assignment": "Play"}  # what users write against

__all__ = [
    "Action",
    "Failure",
    "FinishReason",
    "Iteration",
    "Key",
    "Marks",
    "Observation",
    "Play",
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


def __getattr__(name: str) -> Any:
    """Raises: ContractError, for a name of an earlier version; AttributeError, for any other."""
    if name in RENAMED:
        raise ContractError(
            where=f"palaestra.data.{name}",
            what=f"`{name}` is called `{RENAMED[name]}` now.",
            remedy="Rename it; docs/renames.yaml lists what else has another name.",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
