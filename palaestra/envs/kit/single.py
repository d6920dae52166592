"""Answers of environments with one agent: the step result of an act, and the error of an act too early.

Knows StepResult. Knows nothing of any world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.data import Observation, StepResult
from palaestra.errors import ContractError


def single(
    agent: str,
    seen: Observation | None,
    *,
    reward: float = 0.0,
    over: bool = False,
    cut: bool = False,
    info: Mapping[str, Any] | None = None,
) -> StepResult:
    """What `step` returns where one agent acts.

    Args:
        seen: what the agent sees next; of an episode that is cut off, what it would have seen.
        over: the rules of the task ended the episode. cut: a limit did; `over` wins.
        info: JSON values; dicts over agents speak of the act just made.
    """
    cut = cut and not over
    shown = {} if over or seen is None else {agent: seen}
    return StepResult(
        observations={} if cut else shown,
        last=shown if cut else {},
        rewards={agent: float(reward)},
        terminated=frozenset({agent} if over else ()),
        truncated=frozenset({agent} if cut else ()),
        info=dict(info or {}),
    )


def unstarted(name: str) -> ContractError:
    """The error of an environment that is asked to go on before any task was set up."""
    return ContractError(
        where=f"environment {name}",
        what="`step` was called before `reset`.",
        remedy="Call `reset(task)` first; palaestra.testing.check_environment shows how an episode runs.",
    )
