"""Small tables made by hand, which tests of several systems start from."""

from __future__ import annotations

from typing import Any

from palaestra.data import StepTable
from palaestra.data.iteration import Iteration

NAN = float("nan")


def table(**columns: Any) -> StepTable:
    """One group of two trajectories of two rows, with every column that estimators read."""
    base: dict[str, Any] = {
        "group": ["g"] * 4,
        "trajectory": ["a", "a", "b", "b"],
        "agent": ["x"] * 4,
        "turn": [0, 1, 0, 1],
        "reward": [0.0, 1.0, 0.0, 0.0],
        "process": [1.0, 0.0, 0.0, 0.0],
        "good": [1, 1, 0, 1],
        "row_entropy": [0.1, 0.2, 0.3, 0.4],
        "stratum": ["0 calls"] * 4,
        "state_key": ["s", "t", "s", "u"],
        "action_key": ["l", "m", "l", "m"],
        "next_key": ["t", "end", "u", "end"],
        "state_text": ["a hall", "a door", "a hall", "a yard"],
    }
    return StepTable(**{**base, **columns})


def at(step: int = 0, seed: int = 0) -> Iteration:
    """What a part is told of an iteration without policies."""
    return Iteration({}, step, seed=seed, temperature=1.0, token_budget=64)


def judged(scores: list[float], outcome: float, **columns: Any) -> StepTable:
    """One trajectory: these scores, and a final step without."""
    size = len(scores) + 1
    base: dict[str, Any] = {
        "group": ["g"] * size,
        "trajectory": ["t"] * size,
        "agent": ["x"] * size,
        "turn": range(size),
        "reward": [0.0] * size,
        "process": [*scores, NAN],
        "outcome": [outcome] * size,
    }
    return StepTable(**{**base, **columns})


def answers(*scores: float, **columns: Any) -> StepTable:
    """One answer of one row for each score."""
    names = [str(i) for i in range(len(scores))]
    return StepTable(
        group=["g"] * len(names), trajectory=names, agent=["x"] * len(names), turn=[0] * len(names), reward=scores,
        **columns,
    )  # fmt: skip


def two_steps(**columns: Any) -> StepTable:
    """Two steps of two tokens, reward 1 at the end."""
    base: dict[str, Any] = {
        "group": ["g", "g"],
        "trajectory": ["t", "t"],
        "agent": ["x", "x"],
        "turn": [0, 1],
        "reward": [0.0, 1.0],
        "token_count": [2, 2],
        "value_old": [0.5, 0.6, 0.7, 0.8],
        "row_value": [0.4, 0.6],
        "terminated": [False, True],
    }
    return StepTable(**{**base, **columns})


def episode(steps: int, **columns: Any) -> StepTable:
    """One trajectory. A number stands on the first row; `format`, `state…`, `calls…` and `truncated` on the last."""
    table = {"group": ["g"] * steps, "trajectory": ["t"] * steps, "agent": ["x"] * steps, "turn": list(range(steps))}
    filled: dict[str, Any] = {"reward": [0.0] * steps}
    for name, value in columns.items():
        late = name.startswith(("format", "state_", "calls_", "truncated"))
        rest = [0.0] * (steps - 1)
        filled[name] = [value] * steps if name == "outcome" else [*rest, value] if late else [value, *rest]
    return StepTable(**table, **filled)


def team(**columns: Any) -> StepTable:
    """Two trajectories of a planner and a solver; the first succeeds."""
    base: dict[str, Any] = {"group": ["g"] * 4, "trajectory": list("aabb"), "agent": ["plan", "solve"] * 2}
    return StepTable(**{**base, "turn": [0, 1] * 2, "reward": [0.8, 0.6, 0, 0], "outcome": [1, 1, 0, 0], **columns})
