"""What must hold of `relay`:

1. It keeps the contract of environments, for small and large worlds, noisy search, and with all actions offered.
2. The expert answers every question with two calls; guessing rarely does.
3. A call goes to `sub` and back. The main agent reads the report, true or not.
4. Every act tells its call: `main` has invocation 0 and no parent, `sub` the call's number and the turn that made it.
5. `format` judges acts, and `expert` judges calls. A call without a report has failed.
6. An act that the role cannot do costs its penalty, changes nothing and takes a turn. Only unreadable acts are marked.
7. `main` can act twice besides its calls. No call is possible after `calls` of them.
8. `frozen` clones a policy that is not trained, and the policy does not change.
9. Vectors and texts tell the same, except the turns that `sub` has left. Legal actions are those of the role.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palaestra.data import Action, StepResult, Task
from palaestra.envs.probes.relay import MAIN, SUB, Relay
from palaestra.errors import ContractError, RecipeError
from palaestra.recipe import load
from palaestra.testing import check_environment
from palaestra.training.start import train


def start(seed: int = 0, **options: Any) -> tuple[Relay, StepResult]:
    env = Relay(**options)
    return env, env.reset(Task(env="relay", seed=seed))


def act(env: Relay, result: StepResult, *texts: str) -> StepResult:
    for text in texts:
        (agent,) = result.observations
        result = env.step({agent: Action(text=text)})
    return result


def halves(result: StepResult) -> list[str]:
    """The two places that the question asks for."""
    asked = (result.observations[MAIN].text or "").partition("question: ")[2].partition(".")[0]
    return asked.split(" and ")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objects": 8, "places": 4, "colors": 6, "noise": 0.3},
        {"offer": "all", "main_penalty": 0.1, "sub_penalty": 1.0, "shared": True},
        {"calls": 1, "call_turns": 1, "objects": 2, "places": 1, "colors": 2},
    ],
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(Relay(**options), make=lambda: Relay(**options))


def test_options_are_checked() -> None:
    for wrong in ({"objects": 1}, {"colors": 7}, {"calls": 0}, {"noise": 2}, {"offer": "none"}, {"sub_penalty": -1}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Relay(**wrong)
    with pytest.raises(ContractError, match="before `reset`"):
        Relay().step({MAIN: Action(text="ask top of lamp")})


def test_the_expert_answers_with_two_calls() -> None:  # rule 2
    env = Relay()
    for task in env.tasks("train", 40, 0):
        result, acts = env.reset(task), 0
        while result.observations:
            (agent,) = result.observations
            result, acts = env.step({agent: env.expert(agent)}), acts + 1
            assert int(result.info["stratum"]) == (1 if acts < 4 else 2)
        assert (result.info["success"], result.info["calls"], result.info["stratum"], acts) == (True, 2, "2", 7)
        assert result.rewards == {MAIN: 1.0} and result.terminated == {MAIN, SUB}


def test_random_play_rarely_wins() -> None:  # rule 2
    env, draw, wins = Relay(), random.Random(0), 0
    for task in env.tasks("train", 200, 0):
        result = env.reset(task)
        while result.observations:
            (agent,) = result.observations
            result = env.step({agent: Action(value=draw.choice(list(result.observations[agent].legal or ())))})
        wins += result.info["success"]
    assert wins < 40


@pytest.mark.parametrize("true", [True, False])
def test_reports_become_notes(true: bool) -> None:  # rule 3
    env, result = start(3)
    key = halves(result)[1]
    result = act(env, result, f"ask {key}")
    assert (result.observations[SUB].text or "").startswith(f"find {key}.")
    result = act(env, result, f"search {key}")
    found = (result.observations[SUB].text or "").partition("found: ")[2].split(".")[0].split()[-1]
    told = found if true else next(color for color in ("red", "blue") if color != found)
    result = act(env, result, f"report {told}")
    assert f"{key} is {told}. 2 calls left." in (result.observations[MAIN].text or "")
    assert result.info["expert"] == {SUB: float(true)} and result.info["format"] == {SUB: 1.0}


def test_acts_tell_their_call() -> None:  # rule 4
    env, result = start(1)
    first, second = halves(result)
    told = []
    for text in (f"ask {first}", f"search {first}", "report red", f"ask {second}", "report blue", "answer red blue"):
        result = act(env, result, text)
        told.append((result.info["invocation"], result.info.get("parent")))
    assert told == [
        ({MAIN: 0}, None),
        ({SUB: 1}, {SUB: 0}),
        ({SUB: 1}, {SUB: 0}),
        ({MAIN: 0}, None),
        ({SUB: 2}, {SUB: 3}),
        ({MAIN: 0}, None),
    ]


def test_a_call_without_a_report_failed() -> None:  # rule 5
    env, result = start(0)
    key = halves(result)[0]
    result = act(env, result, f"ask {key}", f"search {key}", f"search {key}")
    assert "expert" not in result.info
    result = act(env, result, f"search {key}")
    assert (result.info["expert"], result.info["format"]) == ({SUB: 0.0}, {SUB: 0.0})
    assert list(result.observations) == [MAIN] and "is " not in (result.observations[MAIN].text or "")


@pytest.mark.parametrize(
    ("texts", "penalty", "marked"),
    [
        (["report red"], {MAIN: -0.25}, False),
        (["hello"], {MAIN: -0.25}, True),
        (["ask top of lamp", "answer red red"], {SUB: -1.5}, False),
        (["ask top of lamp", "??"], {SUB: -1.5}, True),
        (["ask top of lamp"], {}, False),
    ],
)
def test_roles_have_prices(texts: list[str], penalty: dict[str, float], marked: bool) -> None:  # rule 6
    env, before = start(0, offer="all", main_penalty=0.25, sub_penalty=1.5)
    before = act(env, before, *texts[:-1])
    after = act(env, before, texts[-1])
    assert after.rewards == penalty
    assert bool(after.info.get("invalid")) == marked
    if penalty:
        (agent,) = before.observations
        assert after.info["format"] == {agent: 0.0} and agent in after.observations
        assert (after.observations[agent].text or "").startswith(("not possible. ", "not understood. "))


def test_limits() -> None:  # rule 7
    env, result = start(0, calls=1, call_turns=1, shared=True)
    result = act(env, result, "ask top of lamp", "report red")
    legal = result.observations[MAIN].legal or ()
    assert not any(env.actions[index].startswith("ask") for index in legal)
    result = act(env, result, "ask top of lamp")
    assert list(result.observations) == [MAIN]
    result = act(env, result, "ask top of lamp")
    assert result.observations == {} and result.info["success"] is False
    assert result.rewards == {MAIN: 0.0, SUB: 0.0}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_sub_agent_is_cloned_if_asked(tmp_path: Path, frozen: bool) -> None:  # rule 8
    network = {"policy": {"network": {"hidden": [8], "critic": False}}}
    given = {
        "name": "relay",
        "environment": {"relay": {}},
        "agents": {"main": {"policy": "main"}, "sub": {"policy": "sub"}},
        "policies": {"main": network, "sub": {**network, "trainable": False}},
        "rollout": {"runner": "vector", "tasks": 2, "group": 4, "max_turns": 16},
        "training": {"iterations": 1, "checkpoint_every": 1},
        "evaluation": {"tasks": 2},
        "warm_start": {"episodes": 4, "epochs": 1, "frozen": frozen},
        "run": str(tmp_path / "run"),
    }
    recipe = load([given], [])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    setting_folder = tmp_path / "run" / "checkpoints"
    first, last = (load_file(setting_folder / f"step-00000{step}" / "sub.safetensors") for step in (0, 1))
    assert all(torch.equal(first[name], last[name]) for name in first)
    biases = [value for name, value in first.items() if name.endswith("bias")]
    assert any(bool((bias != 0).any()) for bias in biases) == frozen  # fresh biases are 0


def test_vectors_say_what_texts_say() -> None:  # rule 9
    env, said = Relay(), {}
    draw = random.Random(1)
    for task in env.tasks("train", 60, 3):
        result = env.reset(task)
        while result.observations:
            ((agent, seen),) = result.observations.items()
            assert seen.vector is not None
            said.setdefault(seen.vector.tobytes(), set()).add(re.sub(r"\d turns left", "", seen.text or ""))
            words = {env.actions[index].split()[0] for index in seen.legal or ()}
            assert words <= ({"ask", "answer"} if agent == MAIN else {"search", "report"})
            result = env.step({agent: Action(value=draw.choice(list(seen.legal or ())))})
    assert all(len(texts) == 1 for texts in said.values())
