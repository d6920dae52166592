"""The reward part `group_function`.

1. The function gets all replies to a question, with its columns, and its rewards join those of the environment. It may
   take what TRL gives beside them.
2. A function of another kind, or another environment, is refused before the run.
3. What the function raises, and a list of another length, end the run with the function's file and line.
"""

from __future__ import annotations

import json

import pytest

from palaestra.errors import InvalidData, RecipeError
from palaestra.recipe import load
from palaestra.training.start import train
from tests.messages import told

FUNCTIONS = """
def long(completions, prompts, answer, level, completion_ids, log_metric=None):
    sizes = {len(completions), len(prompts), len(answer), len(level), len(completion_ids)}
    assert sizes == {4} and len(set(prompts)) == len(set(answer)) == 1
    log_metric("longest", max(map(len, completions)))
    most = max(map(len, completions))
    return [None if said == "" else float(len(said) == most) for said in completions]

async def several(completions, prompts, **columns):
    assert [message["role"] for message in completions[0]] == ["assistant", "user", "assistant"]
    assert prompts[0][0]["role"] == "user"
    return [1.0] * len(completions)

def one(completion):
    return 1.0

def short(completions, **columns):
    return [1.0]

def broken(completions, **columns):
    return [said.nothing for said in completions]

def stepped(completions, trainer_state, log_extra, **columns):
    log_extra("said", completions)
    assert (trainer_state.global_step, trainer_state.max_steps) == (0, 1)
    return [1.0] * len(completions)

def reply(messages, **columns):
    return "Go on."
"""
RECIPE = {
    "name": "groups",
    "environment": {"dataset": {"path": "train.jsonl", "split": 0.2}},
    "policies": {
        "main": {"policy": {"language": {"hidden": 32, "layers": 1, "heads": 2, "context": 128, "vocabulary": 300}}}
    },
    "agents": {"*": {"policy": "main"}},
    "rollout": {"tasks": 2, "group": 4, "response_tokens": 4},
    "advantage": "grpo",
    "optimizer": {"adamw": {"lr": 1e-3}},
    "training": {"iterations": 1},
    "evaluation": {"tasks": 2},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Train a recipe whose reward is a function; returns the metrics."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(FUNCTIONS)

    def trained(function, *, talk=False, **changes):
        prompts = [f"What is {n} + {n}?" for n in range(40)]
        given = [[{"role": "user", "content": text}] if talk else text for text in prompts]
        rows = [{"prompt": prompt, "answer": str(2 * n), "level": n % 3} for n, prompt in enumerate(given)]
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        part = {"group_function": {"function": f"rewards.py:{function}", "weight": 0.5}}
        (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE | {"reward": ["environment", part]} | changes))
        recipe = load(["recipe.yaml"])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, overwrite=True)
        (log,) = (tmp_path / "runs").rglob("metrics.jsonl")
        return json.loads(log.read_text().splitlines()[-1])

    return trained


def test_the_function_sees_the_group(run):  # rule 1
    metrics = run("long")
    assert 0.25 <= metrics["reward/group/long"] <= 1 and metrics["longest"] > 0
    paid = metrics["reward/mean"] + 0.5 * metrics["reward/group/long"]
    assert metrics["reward/shaped"] == pytest.approx(paid, abs=0.13)  # an empty reply counts in one of the two means


def test_what_trl_gives(run):
    assert run("stepped")["reward/group/stepped"] == 1


def test_conversations_are_messages(run):
    environment = {"dataset": {"path": "train.jsonl", "split": 0.2, "respond": "rewards.py:reply", "max_turns": 2}}
    assert run("several", talk=True, environment=environment)["reward/group/several"] == 1


def test_functions_and_environments_of_another_kind(run):  # rule 2
    with told(RecipeError, "takes one reply"):
        run("one")
    with told(RecipeError, "the environment is `echo`"):
        run("long", environment="echo")


@pytest.mark.parametrize(
    ("function", "word"),
    [("short", "not a list of 4 numbers (rewards.py, line 17)"), ("broken", "rewards.py, line 21")],
)
def test_faults_of_the_function(run, function, word):  # rule 3
    with told(InvalidData, word):
        run(function)
