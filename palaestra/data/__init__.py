"""What flows between rooms: tasks, interaction, trajectories, tables and token batches.

Each name is imported when it is first asked for, so that a recipe is checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_PLACES = {
    "Action": "interaction",
    "Assignment": "task",
    "Failure": "trajectory",
    "FinishReason": "interaction",
    "Iteration": "iteration",
    "Key": "keys",
    "Marks": "trajectory",
    "Observation": "interaction",
    "Row": "table",
    "Step": "trajectory",
    "StepResult": "interaction",
    "StepTable": "table",
    "StopReason": "trajectory",
    "Tail": "trajectory",
    "Task": "task",
    "TokenBatch": "tokens",
    "ToolCall": "interaction",
    "Trajectory": "trajectory",
    "derive": "seeds",
    "panel_hash": "task",
    "rows_of": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
