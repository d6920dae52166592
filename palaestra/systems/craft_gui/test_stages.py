"""Rules of `stages`.

1. It gives tasks of the present bucket and a share of earlier ones; it moves on after fixed steps, or on a plateau.
2. Refused: limits that do not rise, empty buckets, tasks without a difficulty.
"""

from __future__ import annotations

from collections import Counter

import pytest

from palaestra.data import Play, StopReason, Task, Trajectory
from palaestra.envs.probes.uiform import UIForm
from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.craft_gui.stages import Stages
from tests.messages import told

FORMS = UIForm()


def played(task, outcome, stop=StopReason.COMPLETED):
    return Trajectory(task=task, group="g", outcome=outcome, stop=stop)


def difficulties(tasks):
    return [FORMS.difficulty(Play.of(task).task) for task in tasks]


def test_buckets_by_length():  # rule 1
    sampler = Stages(limits=(3.0, 8.0))
    assert [sampler.bucket(length) + 1 for length in (2, 5, 9)] == [1, 2, 3]
    assert [sampler.bucket(length) + 1 for length in (3, 4, 8, 8.5)] == [1, 2, 2, 3]


def test_stages_follow_fixed_steps():  # rule 1
    sampler = Stages(limits=(3.0, 8.0), every=10, replay=0.0)
    for step, (low, high) in {0: (2, 3), 9: (2, 3), 10: (4, 8), 25: (9, 12), 400: (9, 12)}.items():
        found = difficulties(sampler(FORMS, step, 24, 0))
        assert low <= min(found) and max(found) <= high
        assert sampler.learn([played(task, 1.0) for task in sampler(FORMS, step, 2, 0)], step) == {
            "curriculum/stage": {2: 0.0, 4: 1.0, 9: 2.0}[low],
            "curriculum/success": 1.0,
            "curriculum/replayed": 0.0,
        }
    backwards = Stages(limits=(3.0, 8.0), every=10, replay=0.0, order="falling")
    assert min(difficulties(backwards(FORMS, 0, 24, 0))) > 8
    assert max(difficulties(backwards(FORMS, 20, 24, 0))) <= 3


def test_a_share_of_earlier_tasks_is_kept():  # rule 1
    sampler = Stages(limits=(3.0, 8.0), every=1, replay=0.25)
    found = Counter(
        sampler.bucket(one) for step in range(2, 42) for one in difficulties(sampler(FORMS, step, 16, step))
    )
    assert 0.15 < (found[0] + found[1]) / 640 < 0.35
    assert abs(found[0] - found[1]) < 50
    first = Counter(sampler.bucket(one) for one in difficulties(sampler(FORMS, 0, 64, 0)))
    assert set(first) == {0}, "nothing was left behind yet"
    shorter, longer = sampler(FORMS, 5, 8, 0), sampler(FORMS, 5, 12, 0)
    assert [sampler.bucket(d) for d in difficulties(shorter)] == [sampler.bucket(d) for d in difficulties(longer[:8])]


def test_a_plateau_ends_a_stage():  # rule 1
    sampler = Stages(limits=(3.0, 8.0), switch="plateau", patience=2, margin=0.05, replay=0.0)
    easy, hard = Task(env="x", seed=0, difficulty=2.0), Task(env="x", seed=1, difficulty=5.0)
    rising = [0.0, 0.1, 0.3, 0.5]
    for step, rate in enumerate(rising):
        assert sampler.learn([played(easy, rate)], step)["curriculum/stage"] == 0.0
    assert sampler.stage == 0
    for step, rate in enumerate([0.5, 0.5, 0.45], start=4):
        sampler.learn([played(easy, rate), played(easy, None, StopReason.ERROR), played(hard, 1.0)], step)
    assert sampler.stage == 1
    assert sampler.state_dict() == {"stage": 1, "history": []}
    metrics = sampler.learn([played(easy, 1.0), played(hard, None, StopReason.MAX_TURNS)], 7)
    assert metrics == {"curriculum/stage": 1.0, "curriculum/success": 0.0, "curriculum/replayed": 0.5}
    other = Stages(limits=(3.0, 8.0), switch="plateau", patience=2)
    other.load_state_dict(sampler.state_dict())
    assert other.state_dict() == {"stage": 1, "history": [0.0]}


def test_bad_stages_are_refused():  # rule 2
    with pytest.raises(RecipeError, match=r"\[8.0, 3.0\] do not rise"):
        Stages(limits=(8.0, 3.0))
    with told(InvalidData, "3, difficulty above") as caught:
        Stages(limits=(3.0, 30.0), every=1, replay=0.0)(FORMS, 2, 4, 0)
    assert "Set `limits`" in caught.value.remedy
    plain = type("Plain", (), {"tasks": lambda self, split, n, seed: [Task(env="plain", seed=i) for i in range(n)]})
    with told(InvalidData, "`plain`"):
        Stages()(plain(), 0, 4, 0)
