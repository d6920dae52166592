"""The filter of overlong trajectories: (1) what a limit cut off gets 0 on all its rows, by the limits that are named;
(2) so do more tokens than `maximum`; (3) without limits it is neutral; (4) unknown limits are refused; (5) its tokens
leave the denominators, and the statistics of the group stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Step, StepTable, StopReason, Task, Trajectory, rows_of
from palaestra.data.iteration import Iteration
from palaestra.errors import RecipeError
from palaestra.parts.estimators import grpo
from palaestra.parts.masks import overlong_filter
from palaestra.training.stages import combine


def episode(sample: int, stop: StopReason, *, lengths: tuple[int, ...] = (1, 1), cut: bool = False) -> Trajectory:
    """An episode with steps of these numbers of tokens."""
    steps = [
        Step(agent="x", turn=turn, action=Action(text="", tokens=np.zeros(n, np.int32)), observation=Observation())
        for turn, n in enumerate(lengths)
    ]
    steps[-1].truncated = cut or stop.cut
    steps[-1].terminated = not steps[-1].truncated
    steps[-1].reward = float(sample % 2)
    return Trajectory(task=Task(env="e", seed=0), group="g", sample=sample, steps=steps, stop=stop)


EPISODES = [
    episode(0, StopReason.COMPLETED),
    episode(1, StopReason.COMPLETED, cut=True),
    episode(2, StopReason.MAX_TURNS),
    episode(3, StopReason.MAX_TOKENS, lengths=(4, 5)),
    episode(4, StopReason.COMPLETED, lengths=(4, 6)),
]


def weights(**options: Any) -> list[float]:
    """One number per trajectory."""
    iteration = Iteration({}, 0, 0, 1.0, 64, rows_of(EPISODES))
    found = overlong_filter(StepTable.from_trajectories(EPISODES), iteration, **options)
    assert bool((found[::2] == found[1::2]).all())
    return found[::2].tolist()


def test_limits() -> None:  # rule 1
    assert weights() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert weights(stops=("max_tokens",)) == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert weights(stops=("environment", "max_turns")) == [1.0, 0.0, 0.0, 1.0, 1.0]


def test_lengths() -> None:  # rule 2
    assert weights(stops=(), maximum=9) == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_neutral() -> None:  # rule 3
    assert weights(stops=()) == [1.0] * 5


def test_unknown_limit() -> None:  # rule 4
    with pytest.raises(RecipeError, match="stops"):
        weights(stops=("max_words",))


def test_denominators() -> None:  # rule 5
    table = StepTable.from_trajectories(EPISODES)
    found = overlong_filter(table, Iteration({}, 0, 0, 1.0, 64, rows_of(EPISODES)))
    assert "counts" in overlong_filter.part.writes
    assert torch.count_nonzero(combine([table.row_weight, found], table)) == 12
    assert torch.count_nonzero(grpo(table)) == len(table)
