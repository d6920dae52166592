"""Rules of `slowarm`: (1) it keeps the contract of environments; (2) durations, scores and crashes follow the options;
(3) success is the best program in all rounds; (4) unequal or impossible options are refused.
"""

from __future__ import annotations

import json

import pytest

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.errors import ContractError, RecipeError
from palaestra.recipe import load
from palaestra.systems.duration_aware.slowarm import SlowArm
from palaestra.testing import check_environment
from palaestra.training.start import train

PLAYER = "player"


@pytest.mark.parametrize("options", [{}, {"rounds": 3, "crash": 0.5}, {"durations": [1, 2, 3], "scores": [0, 0, 1]}])
def test_contract(options):  # rule 1
    check_environment(SlowArm(**options), make=lambda: SlowArm(**options))


def test_what_is_told():  # rule 2
    env = SlowArm()
    for text, took, score in (("fast", 1.0, 0.5), ("slow", 10.0, 1.0), ("none", 1.0, 0.0)):
        env.reset(Task(env="slowarm", seed=4))
        result = env.step({PLAYER: Action(text=text)})
        assert result.info["duration"] == {PLAYER: took} and result.rewards == {PLAYER: score}
        assert result.info["valid"] == {PLAYER: float(score > 0)} and not result.observations
        assert result.info["success"] is (text == "slow") and bool(result.info.get("invalid")) == (text == "none")


def test_crashes():  # rule 2
    env, found = SlowArm(crash=0.5), []
    for seed in range(1000):
        env.reset(Task(env="slowarm", seed=seed))
        result = env.step({PLAYER: Action(value=1)})
        valid, stages = result.info["valid"][PLAYER], result.info["milestones"][PLAYER]
        assert (stages == 5) == bool(valid)
        assert result.info["duration"][PLAYER] == pytest.approx(10 if valid else 2 * (stages + 1))
        assert result.rewards[PLAYER] == valid
        found.append(stages)
    assert 420 < found.count(5) < 580
    assert all(found.count(stages) > 50 for stages in range(5))


def test_rounds():  # rule 3
    env = SlowArm(rounds=2)
    env.reset(Task(env="slowarm", seed=0))
    first = env.step({PLAYER: env.expert(PLAYER)})
    assert first.rewards == {PLAYER: 0.5} and first.info["success"] is False
    assert env.step({PLAYER: Action(text="slow")}).info["success"] is True
    env.reset(Task(env="slowarm", seed=0))
    env.step({PLAYER: Action(text="fast")})
    assert env.step({PLAYER: Action(text="slow")}).info["success"] is False


def test_bad_options():  # rule 4
    for options, message in (
        ({"durations": (1.0, 2.0, 3.0)}, "3 durations and 2 scores"),
        ({"durations": (1.0, 0.0)}, "a duration is 0"),
        ({"scores": (0.5, 1.5)}, "a score is 1.5"),
        ({"durations": (1.0,), "scores": (1.0,)}, "durations"),
    ):
        with pytest.raises(RecipeError, match=message):
            SlowArm(**options)
    with pytest.raises(ContractError, match="before `reset`"):
        SlowArm().step({PLAYER: Action(text="fast")})


@pytest.mark.slow
def test_a_run_reads_durations(tmp_path):  # rule 2
    few = [f"run={tmp_path / 'run'}", "training.iterations=2"]
    recipe = load(["duration_aware/slowarm.yaml", "duration_aware/method.yaml"], few)
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["policy/grad_norm"] > 0 for line in lines)
    played = []
    for value in (0, 1):
        env = SlowArm()
        env.reset(Task(env="slowarm", seed=0))
        told = env.step({PLAYER: Action(value=value)}).info["duration"][PLAYER]
        step = Step(
            agent=PLAYER, turn=0, action=Action(value=value), observation=Observation(), info={"duration": told}
        )
        played.append(Trajectory(task=Task(env="slowarm", seed=0), group="g", sample=value, steps=[step]))
    assert StepTable.from_trajectories(played)["duration"].tolist() == [1.0, 10.0]
