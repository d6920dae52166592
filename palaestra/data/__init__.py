"""What flows between rooms: tasks, interaction, trajectories, tables and token batches.

Each name is imported when it is first asked for, so that a recipe is checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from palaestra.former import former_names

if TYPE_CHECKING:
    from palaestra.data.interaction import Action, FinishReason, Observation, StepResult, ToolCall
    from palaestra.data.iteration import Batch, Iteration
    from palaestra.data.keys import Key
    from palaestra.data.pairs import PairTable
    from palaestra.data.seeds import derive
    from palaestra.data.setup import RunSetup
    from palaestra.data.table import Row, StepTable, rows_of
    from palaestra.data.task import Play, Task, panel_hash
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
    "panel_hash",
    "rows_of",
]

_PLACES = {
    "Action": "interaction",
    "Batch": "iteration",
    "Failure": "trajectory",
    "FinishReason": "interaction",
    "Iteration": "iteration",
    "Key": "keys",
    "Marks": "trajectory",
    "NextPrompt": "trajectory",
    "Observation": "interaction",
    "PairTable": "pairs",
    "Play": "task",
    "Row": "table",
    "RunSetup": "setup",
    "Step": "trajectory",
    "StepResult": "interaction",
    "StepTable": "table",
    "StopReason": "trajectory",
    "Task": "task",
    "TokenBatch": "tokens",
    "ToolCall": "interaction",
    "Trajectory": "trajectory",
    "derive": "seeds",
    "panel_hash": "task",
    "rows_of": "table",
}
_former = former_names(__name__, {"Assignment": "`Play` now", "Tail": "`NextPrompt` now"})


if not TYPE_CHECKING:  # a type checker finds a misspelled name

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            return _former(name)
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
