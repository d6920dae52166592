"""The sampler `success_window`:

1. With outside 1 it gives the tasks of `repeated`.
2. Tasks come from a fixed set, those in the window are preferred, and none occurs twice in an iteration.
3. An empty window and more tasks than the set has are refused.
"""

from __future__ import annotations

from collections import Counter

import pytest

from palaestra.data import StopReason, Trajectory
from palaestra.envs.probes.uiform import UIForm
from palaestra.errors import RecipeError
from palaestra.parts.samplers import Repeated
from palaestra.systems.success_window import SuccessWindow

FORMS = UIForm()


def played(task, outcome, stop=StopReason.COMPLETED):
    return Trajectory(task=task, group="g", outcome=outcome, stop=stop)


def test_a_window_that_prefers_nothing_repeats():  # rule 1
    window, repeated = SuccessWindow(pool=12, outside=1.0), Repeated(size=12)
    for step in range(6):
        tasks = window(FORMS, step, 5, 3)
        assert tasks == repeated(FORMS, step, 5, 3)
        window.learn([played(tasks[0], 1.0)], step)


def test_tasks_in_the_window_are_preferred():  # rule 2
    sampler = SuccessWindow(pool=30, low=0.2, high=0.8, outside=0.1, speed=1.0)
    pool = sampler(FORMS, 0, 30, 0)
    assert len({task.content_hash for task in pool}) == 30
    rates = {task.content_hash: rate for task, rate in zip(pool, [0.0, 0.5, 1.0] * 10, strict=True)}
    metrics = sampler.learn([played(task, rates[task.content_hash]) for task in pool], 0)
    third = pytest.approx(1 / 3)
    assert metrics == {
        "curriculum/seen": 1.0, "curriculum/inside": third, "curriculum/solved": third, "curriculum/hopeless": third
    }  # fmt: skip
    drawn = Counter(rates[task.content_hash] for step in range(1, 201) for task in sampler(FORMS, step, 4, 0))
    assert drawn[0.5] > 600 and drawn[0.0] > 20 and drawn[1.0] > 20
    for step in range(1, 20):
        tasks = sampler(FORMS, step, 12, 0)
        assert len({task.content_hash for task in tasks}) == 12
        assert tasks == sampler(FORMS, step, 12, 0)
    shut = SuccessWindow(pool=30, low=0.2, high=0.8, outside=0.0)
    shut.load_state_dict(sampler.state_dict())
    assert {rates[task.content_hash] for task in shut(FORMS, 3, 10, 0)} == {0.5}
    assert len(shut(FORMS, 3, 20, 0)) == 20, "others are taken where the window has too few"


def test_rates_move_with_the_groups():  # rule 2
    sampler, task = SuccessWindow(pool=4, speed=0.5), FORMS.tasks("train", 1, 0)[0]
    for step, outcomes in enumerate(([1.0, 0.0], [1.0, 1.0], [None, None])):
        sampler.learn([played(task, outcome) for outcome in outcomes], step)
    assert sampler.state_dict() == {"rate": {task.content_hash: pytest.approx(0.375)}}


def test_bad_windows_are_refused():  # rule 3
    with pytest.raises(RecipeError, match=r"from 0.9 to 0.1 is empty"):
        SuccessWindow(low=0.9, high=0.1)
    with pytest.raises(RecipeError, match="plays 5 tasks, but the set has 4"):
        SuccessWindow(pool=4)(FORMS, 0, 5, 0)
