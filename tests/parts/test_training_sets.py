"""Samplers of a fixed training set: (1) each task comes once before any comes again, in another order each time; (2)
state is kept, also that of `adaptive_rollouts`.
"""

from __future__ import annotations

from palaestra.data import Task
from palaestra.envs.probes.rooms import Rooms
from palaestra.parts.samplers import Repeated
from palaestra.systems.dart.adaptive_rollouts import AdaptiveRollouts
from tests.replay.episodes import episode


class Line:
    """Tasks of the environment of `tests.replay.episodes`."""

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        return [Task(env="line", seed=place) for place in range(n)]


def test_every_task_once() -> None:  # rule 1
    sampler = Repeated(size=6)
    iterations = [[task.seed for task in sampler(Rooms(), i, 4, 7)] for i in range(6)]
    flat = [seed for seeds in iterations for seed in seeds]
    epochs = [flat[at : at + 6] for at in range(0, 24, 6)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 6 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert [task.seed for task in Repeated(size=6)(Rooms(), 5, 4, 7)] == iterations[5], "a resumed run goes on"
    further = {task.seed for task in sampler(Rooms(), 0, 6, 99)}
    assert further == set(epochs[0]), "another seed within a run draws from the same set"


def test_state() -> None:  # rule 2
    sampler = AdaptiveRollouts(size=2)
    sampler.learn([episode(1.0, task=0), episode(0.0, task=1)], 0)
    other = AdaptiveRollouts(size=2)
    other.load_state_dict(sampler.state_dict())
    assert other(Line(), 1, 2, 0) == sampler(Line(), 1, 2, 0) and other.state_dict() == sampler.state_dict()

    plain = Repeated(size=4)
    assert plain.learn([episode(1.0, task=0), episode(0.0, task=1)], 0) == {"sampler/solved": 0.25}
    resumed = Repeated(size=4)
    resumed.load_state_dict(plain.state_dict())
    assert resumed.learn([episode(1.0, task=2)], 1) == {"sampler/solved": 0.5}
