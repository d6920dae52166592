"""What is left out of training: (1) void turns, (2) repetition and (3) unreadable text mask whole trajectories, and say
how many.
"""

from __future__ import annotations

import numpy as np
import pytest

from palaestra.data import FinishReason, StepTable, Trajectory
from palaestra.systems.spear.filters import RepetitionFilter, UnreadableFilter, VoidTurnFilter
from tests.replay.episodes import episode, seen


def kept(part: object, episodes: list[Trajectory]) -> list[float]:
    """The weight of each episode's first row."""
    table = StepTable.from_trajectories(episodes)
    weight = part(table, seen(episodes))  # type: ignore[operator]
    assert bool((weight.reshape(-1, 2)[:, 0] == weight.reshape(-1, 2)[:, 1]).all()), "trajectories stay whole"
    return weight[::2].tolist()


def test_void_turns() -> None:  # rule 1
    cut, unread = (episode(0.0, sample=i, texts=["go", "take"]) for i in (2, 3))
    cut.steps[0].action.finish = FinishReason.LENGTH
    unread.steps[1].info["invalid"] = 1.0
    played = [episode(0.0, sample=0, texts=["go", "take"]), episode(0.0, sample=1, texts=["go", " \n"]), cut, unread]
    part = VoidTurnFilter()
    assert kept(part, played) == [1, 0, 0, 0]
    assert part.learn(StepTable.from_trajectories(played), seen(played)) == {"filter/void_turn": 0.75}
    assert kept(VoidTurnFilter(unread=False), played) == [1, 0, 0, 1]
    assert kept(VoidTurnFilter(), [episode(0.0), episode(1.0, sample=1)]) == [1, 1], "networks have no text"


@pytest.mark.parametrize(("length", "weight"), [(28, 1.0), (29, 0.0)])
def test_repetition(length: int, weight: float) -> None:  # rule 2
    one = episode(0.0)
    one.steps[0].action.tokens = np.zeros(length, np.int32)  # a run of 20 begins at length − 19 places
    one.steps[0].action.logprobs = np.zeros(length, np.float32)
    part = RepetitionFilter()
    assert kept(part, [one, episode(0.0, sample=1)]) == [weight, 1.0]
    assert part.learn(StepTable.from_trajectories([one]), seen([one])) == {"filter/repetition": (1 - weight) / 2}


def test_runs_lie_inside_one_response() -> None:  # rule 2
    part = RepetitionFilter(length=2, times=2)
    assert part.most([np.array([1, 2]), np.array([1, 2])]) == 2
    assert part.most([np.array([1]), np.array([1, 2, 1])]) == 1
    assert part.most([]) == 0


def test_unreadable() -> None:  # rule 3
    texts = [["go", "take\tkey"], ["go\ufffd", "take"], ["go\x00", "take key"]]
    played = [episode(0.0, sample=i, texts=text) for i, text in enumerate(texts)]
    part = UnreadableFilter()
    assert kept(part, played) == [1, 0, 0]
    assert part.learn(StepTable.from_trajectories(played), seen(played))["filter/unreadable"] == pytest.approx(2 / 3)
    assert kept(UnreadableFilter(most=0.1), played) == [1, 0, 1]
