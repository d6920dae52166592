"""The data types of the library: tasks, observations, actions, trajectories, tables and token batches.

Each name is imported at its first use, so that a recipe can be checked without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from palaestra.data.on_use import imported_on_use

if TYPE_CHECKING:
    from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
    from palaestra.data.iteration import Batch, Iteration
    from palaestra.data.keys import Key
    from palaestra.data.pairs import PairTable
    from palaestra.data.seeds import derive
    from palaestra.data.setup import RunSetup
    from palaestra.data.table import Row, StepTable, rows_of
    from palaestra.data.task import Play, Task
    from palaestra.data.tokens import TokenBatch
    from palaestra.data.trajectory import Failure, Marks, NextPrompt, Step, StopReason, Trajectory

__all__ = [
    "Action",
    "Batch",
    "Failure",
    "FinishReason",
    "Iteration",
    "Key",
    "Marks",
    "NextPrompt",
    "Observation",
    "PairTable",
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
    "rows_of",
]

_PLACES = {
    "interaction": ("Action", "FinishReason", "Observation", "StepResult", "ToolCall"),
    "iteration": ("Batch", "Iteration"),
    "keys": ("Key",),
    "pairs": ("PairTable",),
    "seeds": ("derive",),
    "setup": ("RunSetup",),
    "table": ("Row", "StepTable", "rows_of"),
    "task": ("Play", "Task"),
    "tokens": ("TokenBatch",),
    "trajectory": ("Failure", "Marks", "NextPrompt", "Step", "StopReason", "Trajectory"),
}

if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = imported_on_use(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
