"""Adaptive rollouts:

1. The number of trajectories follows the success rate.
2. The turn limit is the longest success plus the slack.
3. Neutral options give the tasks of `repeated` and `uniform`.
4. Failed episodes change nothing, and wrong options are refused.
5. A run of the whole method resumes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import StopReason, Task
from palaestra.envs.probes.rooms import Rooms
from palaestra.errors import RecipeError
from palaestra.parts.samplers import Repeated, uniform
from palaestra.systems.dart.adaptive_rollouts import AdaptiveRollouts
from tests.parts.episodes import NETWORK, assert_resumes
from tests.replay.episodes import episode
from tests.training.conftest import curve


class Line:
    """Tasks of the environment of `tests.replay.episodes`."""

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        return [Task(env="line", seed=place) for place in range(n)]


@pytest.mark.parametrize(("rate", "number"), [(0.3, 8), (0.6, 8), (0.7, 6), (0.9, 2), (1.0, 2)])
def test_number_of_trajectories(rate: float, number: int) -> None:  # rule 1
    assert AdaptiveRollouts().number(rate) == number
    assert AdaptiveRollouts(threshold=1.0).number(rate) == 8


def test_assignments() -> None:  # rules 1 and 2
    sampler = AdaptiveRollouts(size=2, window=4, slack=3)
    assert {(a.samples, a.turns) for a in sampler(Line(), 0, 2, 0)} == {(8, None)}
    played = [episode(1.0, task=0, sample=i, turns=2 + i) for i in range(4)]
    played += [episode(0.0, task=1, group="h", turns=9)]
    metrics = sampler.learn(played, 0)
    assert metrics == {"sampler/samples": 2.5, "sampler/solved": 0.5}
    given = {a.task.seed: (a.samples, a.turns) for a in sampler(Line(), 1, 2, 0)}
    assert given == {0: (2, 5 + 3), 1: (8, None)}
    sampler.learn([episode(0.0, task=0, sample=i) for i in range(4)], 1)
    given = {a.task.seed: (a.samples, a.turns) for a in sampler(Line(), 2, 2, 0)}
    assert given[0] == (8, 8), "the rate is that of the last episodes, the longest success stays"


def test_neutral() -> None:  # rule 3
    plain = AdaptiveRollouts(size=5, threshold=1.0, slack=None)
    plain.learn([episode(1.0, task=0)], 0)
    for iteration in range(3):
        given = plain(Line(), iteration, 4, 3)
        assert [a.task for a in given] == Repeated(size=5)(Line(), iteration, 4, 3)
        assert {(a.samples, a.turns) for a in given} == {(8, None)}
    fresh = AdaptiveRollouts(size=None, slack=None)(Rooms(), 2, 3, 1)
    assert [a.task for a in fresh] == uniform(Rooms(), 2, 3, 1)


def test_faulty_episodes() -> None:  # rule 4
    sampler = AdaptiveRollouts(size=2)
    sampler.learn([replace(episode(1.0), stop=StopReason.ERROR), replace(episode(1.0), stop=StopReason.SUSPENDED)], 0)
    assert {(a.samples, a.turns) for a in sampler(Line(), 1, 2, 0)} == {(8, None)}
    for faulty in ({"least": 1}, {"threshold": 1.5}, {"slack": -1}, {"size": 0}):
        with pytest.raises(RecipeError, match=next(iter(faulty))):
            AdaptiveRollouts(**faulty)


DART: dict[str, Any] = {
    "sampler": {"adaptive_rollouts": {"size": 4, "most": 4, "threshold": 0.0}},
    "selection": [{"replay_success": {"how": "add", "expert": True}}],
    "weights": [{"uncertain_steps": {"quantile": 0.2}}, {"truncated_importance": {"cap": 1.0}}],
    "advantage": "grpo",
}


def test_runs_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 5
    assert_resumes([NETWORK, DART], tmp_path, monkeypatch, "main.safetensors")
    assert {line["sampler/samples"] for line in curve(tmp_path / "whole")} != {4.0}  # solved tasks were played less
