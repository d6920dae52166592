"""What must hold of samplers for curricula.

1. `growing_horizon`: the turn limit of each iteration; one limit is a fixed one.
2. Neutral settings: with the rollout's own limit it trains bit for bit as `uniform`; so do `stages` without limits; and
   `success_window` with outside 1 gives the tasks of `repeated`.
3. A cut by the horizon is a truncation: the value of the next observation is read there, and is bootstrapped.
4. `stages`: tasks of the present bucket, a share of earlier ones; it moves on after fixed steps, or on a plateau.
5. `success_window`: tasks of a fixed set, those in the window preferred, never twice in an iteration.
6. State is in the checkpoint: a stopped and resumed run is the same byte for byte.
7. What cannot work is refused: growing lists that fall, empty buckets, tasks without difficulty.
8. Environments tell difficulty: the length of the reference solution.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from palaestra.data import Assignment, StopReason, Task, Trajectory
from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.envs.probes.phrase import Phrase
from palaestra.envs.probes.uiform import UIForm
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.samplers import Repeated, uniform
from palaestra.store.metrics import MetricsLog
from palaestra.systems.craft_gui.stages import Stages
from palaestra.systems.scaling_inter import growing_horizon, horizon
from palaestra.systems.success_window import SuccessWindow
from palaestra.training.loop import Trainer
from tests.parts.episodes import NETWORK, RUN, assert_resumes, run
from tests.training.conftest import final_weights

FORMS = UIForm()


def played(task, outcome, stop=StopReason.COMPLETED):
    return Trajectory(task=task, group="g", outcome=outcome, stop=stop)


def difficulties(tasks):
    return [Assignment.of(task).task.difficulty for task in tasks]


# ---- growing horizon --------------------------------------------------------------------------------------
def test_the_horizon_grows():  # rule 1
    rounds = (6, 13, 20)
    assert [horizon(step, rounds, 100) for step in (0, 99, 100, 199, 200, 5000)] == [6, 6, 13, 13, 20, 20]
    assert {horizon(step, (8,), 3) for step in range(20)} == {8}
    for step in (0, 150, 250):
        found = growing_horizon(FORMS, step, 3, 7, rounds=rounds, every=100)
        assert [one.task for one in found] == uniform(FORMS, step, 3, 7)
        assert {(one.turns, one.info["horizon"]) for one in found} == {(horizon(step, rounds, 100),) * 2}


@pytest.mark.parametrize(
    ("rounds", "every", "fault"),
    [((), 1, "`rounds` is empty"), ((6, 5), 1, r"\[6, 5\] falls"), ((0, 5), 1, "holds 0"), ((5,), -1, "-1")],
)
def test_bad_horizons_are_refused(rounds, every, fault):  # rule 7
    with pytest.raises(RecipeError, match=fault):
        growing_horizon(FORMS, 0, 2, 0, rounds=rounds, every=every)
    if every > 0:
        with pytest.raises(RecipeError, match=fault) as caught:
            horizon(0, rounds, every)
        assert "[6, 13, 20]" in caught.value.remedy


@pytest.mark.parametrize(
    "sampler",
    [{"growing_horizon": {"rounds": [6], "every": 2}}, {"stages": {"limits": []}}],
    ids=lambda s: next(iter(s)),
)
def test_neutral_samplers_change_nothing(sampler, tmp_path):  # rule 2
    plain, other = run(tmp_path / "plain", [NETWORK]), run(tmp_path / "other", [NETWORK, {"sampler": sampler}])
    assert final_weights(plain) == final_weights(other)
    shared = [MetricsLog(folder).metrics.read() for folder in (plain, other)]
    for one, two in zip(*shared, strict=True):
        own = {name for name in two if name.startswith(("curriculum/", "info/horizon", "time/"))}
        assert set(two) - own == {name for name in one if not name.startswith("time/")}
        assert all(one[name] == two[name] for name in set(two) - own)


def test_a_window_that_prefers_nothing_repeats():  # rule 2
    window, repeated = SuccessWindow(pool=12, outside=1.0), Repeated(size=12)
    for step in range(6):
        tasks = window(FORMS, step, 5, 3)
        assert tasks == repeated(FORMS, step, 5, 3)
        window.learn([played(tasks[0], 1.0)], step)


def test_a_cut_is_a_truncation(tmp_path, monkeypatch):  # rule 3
    seen, plain = [], Trainer.credit

    def credit(self, whole):
        seen.append((whole, plain(self, whole)))
        return seen[-1][1]

    monkeypatch.setattr(Trainer, "credit", credit)
    growing = {"sampler": {"growing_horizon": {"rounds": [2, 6], "every": 2}}}
    run(tmp_path, [NETWORK, growing, {"advantage": {"ppo": {"gamma": 1.0, "lam": 1.0, "whiten": False}}}])
    assert [max(len(t.steps) for t in whole) <= 2 for whole, _ in seen] == [True, True, False, False]
    for whole, experience in seen[:2]:
        cut = [t for t in whole if t.stop is StopReason.MAX_TURNS]
        assert cut
        for trajectory in cut:
            assert trajectory.outcome is None and trajectory.info["horizon"] == 2
            assert trajectory.steps[-1].truncated and not trajectory.steps[-1].terminated
        table, ends = experience.table, experience.table["truncated"]
        value = table["value_end"][ends]
        assert bool(torch.isfinite(value).all()) and bool((value != 0).any())
        # V of what would have come next counts, where an episode was cut.
        target = experience.credit.target
        assert torch.allclose(target[ends], (table["reward"][ends] + value).to(target), atol=1e-5)
    assert MetricsLog(tmp_path).metrics.read()[0]["info/horizon/mean"] == 2.0


# ---- stages -----------------------------------------------------------------------------------------------
def test_buckets_by_length():  # rule 4
    sampler = Stages(limits=(3.0, 8.0))
    assert [sampler.bucket(length) + 1 for length in (2, 5, 9)] == [1, 2, 3]
    assert [sampler.bucket(length) + 1 for length in (3, 4, 8, 8.5)] == [1, 2, 2, 3]


def test_stages_follow_fixed_steps():  # rule 4
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


def test_a_share_of_earlier_tasks_is_kept():  # rule 4
    sampler = Stages(limits=(3.0, 8.0), every=1, replay=0.25)
    found = Counter(
        sampler.bucket(one) for step in range(2, 42) for one in difficulties(sampler(FORMS, step, 16, step))
    )
    assert 0.15 < (found[0] + found[1]) / 640 < 0.35
    assert abs(found[0] - found[1]) < 50
    first = Counter(sampler.bucket(one) for one in difficulties(sampler(FORMS, 0, 64, 0)))
    assert set(first) == {0}, "nothing was left behind yet"
    shorter, longer = sampler(FORMS, 5, 8, 0), sampler(FORMS, 5, 12, 0)
    assert [sampler.bucket(t.difficulty) for t in shorter] == [sampler.bucket(t.difficulty) for t in longer[:8]]


def test_a_plateau_ends_a_stage():  # rule 4
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


def test_bad_stages_are_refused():  # rule 7
    with pytest.raises(RecipeError, match=r"\[8.0, 3.0\] do not rise"):
        Stages(limits=(8.0, 3.0))
    with pytest.raises(InvalidData, match="bucket 3, difficulty above 30 and up to inf, is empty") as caught:
        Stages(limits=(3.0, 30.0), every=1, replay=0.0)(FORMS, 2, 4, 0)
    assert "Move `limits`" in caught.value.remedy
    plain = type("Plain", (), {"tasks": lambda self, split, n, seed: [Task(env="plain", seed=i) for i in range(n)]})
    with pytest.raises(InvalidData, match="a task of `plain` has no difficulty"):
        Stages()(plain(), 0, 4, 0)


# ---- success window ---------------------------------------------------------------------------------------
def test_tasks_in_the_window_are_preferred():  # rule 5
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
    assert len(shut(FORMS, 3, 20, 0)) == 20, "others must do where the window holds too few"


def test_rates_move_with_the_groups():  # rule 5
    sampler, task = SuccessWindow(pool=4, speed=0.5), FORMS.tasks("train", 1, 0)[0]
    for step, outcomes in enumerate(([1.0, 0.0], [1.0, 1.0], [None, None])):
        sampler.learn([played(task, outcome) for outcome in outcomes], step)
    assert sampler.state_dict() == {"rate": {task.content_hash: pytest.approx(0.375)}}


def test_bad_windows_are_refused():  # rule 7
    with pytest.raises(RecipeError, match=r"from 0.9 to 0.1 is empty"):
        SuccessWindow(low=0.9, high=0.1)
    with pytest.raises(RecipeError, match="plays 5 tasks and the set has 4"):
        SuccessWindow(pool=4)(FORMS, 0, 5, 0)


# ---- runs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sampler",
    [
        {"stages": {"limits": [5.0], "switch": "plateau", "patience": 2, "margin": 1.0, "replay": 0.5}},
        {"success_window": {"pool": 6, "outside": 0.2}},
    ],
    ids=lambda s: next(iter(s)),
)
def test_resumed_runs_are_the_same(sampler, tmp_path, monkeypatch):  # rule 6
    forms = {"environment": {"uiform": {"longest": 8, "max_turns": 9}}, "rollout": {"max_turns": 9}}
    plain = {key: value for key, value in RUN.items() if key != "environment"}
    monkeypatch.setattr("tests.parts.episodes.RUN", plain)
    assert_resumes([NETWORK, forms, {"sampler": sampler}], tmp_path, monkeypatch, "sampler.state.pt")


# ---- difficulty -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("env", [HopSearch(noise=0.0), Phrase(), UIForm()], ids=lambda env: type(env).__name__)
def test_difficulty_is_what_the_expert_needs(env):  # rule 8
    found = set()
    for task in env.tasks("train", 25, 1):
        result, turns = env.reset(task), 0
        while result.observations:
            result, turns = env.step({agent: env.expert(agent) for agent in result.observations}), turns + 1
        assert turns == task.difficulty
        found.add(turns)
    assert len(found) > 1
