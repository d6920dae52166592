"""The filters of SPEAR: (1) void turns, (2) repetition and (3) unreadable text mask whole trajectories, and the metrics
have the share of masked ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from palaestra.data import FinishReason, StepTable, Trajectory
from palaestra.systems.spear.filters import commonest_run, repetition_filter, unreadable_filter, void_turn_filter
from tests.replay.episodes import episode, seen


def kept(part: Callable[..., Tensor], episodes: list[Trajectory], **options: Any) -> tuple[list[float], Any]:
    """The weight of each episode's first row, and the metrics."""
    table, iteration = StepTable.from_trajectories(episodes), seen(episodes)
    weight = part(table, iteration, **options)
    assert bool((weight.reshape(-1, 2)[:, 0] == weight.reshape(-1, 2)[:, 1]).all()), "trajectories stay whole"
    return weight[::2].tolist(), iteration.metrics


def test_void_turns() -> None:  # rule 1
    cut, unread = (episode(0.0, sample=i, texts=["go", "take"]) for i in (2, 3))
    cut.steps[0].action.finish = FinishReason.LENGTH
    unread.steps[1].info["invalid"] = 1.0
    played = [episode(0.0, sample=0, texts=["go", "take"]), episode(0.0, sample=1, texts=["go", " \n"]), cut, unread]
    assert kept(void_turn_filter, played) == ([1, 0, 0, 0], {"filter/void_turn": 0.75})
    assert kept(void_turn_filter, played, unread=False)[0] == [1, 0, 0, 1]
    assert kept(void_turn_filter, [episode(0.0), episode(1.0, sample=1)])[0] == [1, 1], "networks have no text"


@pytest.mark.parametrize(("length", "weight"), [(28, 1.0), (29, 0.0)])
def test_repetition(length: int, weight: float) -> None:  # rule 2
    one = episode(0.0)
    one.steps[0].action.tokens = np.zeros(length, np.int32)  # a run of 20 begins at length − 19 places
    one.steps[0].action.logprobs = np.zeros(length, np.float32)
    found, metrics = kept(repetition_filter, [one, episode(0.0, sample=1)])
    assert found == [weight, 1.0] and metrics == {"filter/repetition": (1 - weight) / 2}


def test_runs_lie_inside_one_response() -> None:  # rule 2
    assert commonest_run([np.array([1, 2]), np.array([1, 2])], length=2) == 2
    assert commonest_run([np.array([1]), np.array([1, 2, 1])], length=2) == 1
    assert commonest_run([], length=2) == 0


def test_unreadable() -> None:  # rule 3
    texts = [["go", "take\tkey"], ["go\ufffd", "take"], ["go\x00", "take key"]]
    played = [episode(0.0, sample=i, texts=text) for i, text in enumerate(texts)]
    found, metrics = kept(unreadable_filter, played)
    assert found == [1, 0, 0] and metrics["filter/unreadable"] == pytest.approx(2 / 3)
    assert kept(unreadable_filter, played, most=0.1)[0] == [1, 0, 1]
