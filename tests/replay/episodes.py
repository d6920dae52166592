"""Hand-made episodes of a network policy for tests of what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.data import Action, Observation, Step, Task, Trajectory, rows_of
from palaestra.data.iteration import Iteration


def episode(
    won: float,
    *,
    group: str = "g",
    sample: int = 0,
    task: int = 0,
    turns: int = 2,
    size: int = 3,
    logprobs: bool = True,
    texts: Sequence[str] | None = None,
) -> Trajectory:
    """Some turns of the agent x, the reward on the last one."""
    steps = [
        Step(
            agent="x",
            turn=turn,
            action=Action(
                value=turn,
                text=None if texts is None else texts[turn],
                tokens=np.array([turn], np.int32),
                logprobs=np.array([-0.5], np.float32) if logprobs else None,
            ),
            observation=Observation(vector=np.arange(size, dtype=np.float32) + turn, legal=[0, 1]),
            reward=won if turn == turns - 1 else 0.0,
            policy="main",
            terminated=turn == turns - 1,
        )
        for turn in range(turns)
    ]
    world = Task(env="line", seed=task)
    return Trajectory(task=world, group=group, sample=sample, steps=steps, outcome=won, returns={"x": won})


def at(step: int = 0, *, policies: Any = None) -> Iteration:
    return Iteration(policies or {}, step, seed=step, temperature=1.0, token_budget=64)


def seen(trajectories: Sequence[Trajectory], step: int = 0) -> Iteration:
    """The same, with the rows of these episodes."""
    found = at(step)
    found.rows = rows_of(trajectories)
    return found
