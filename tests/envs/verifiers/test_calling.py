"""How reward functions are called, as people write them who come from TRL or verl.

1. A function with TRL's signature may return an array, a tensor, a tuple or a generator.
2. It may take what TRL gives by keyword-only parameters, by `**kwargs` alone, and through `functools.partial`.
3. A function with verl's signature gets verl's right answer, also beside a column `answer`.
4. What is no reward fails the episode, with the function's line.
5. A file, a class or a parameter that cannot be used is refused when the environment is made.
6. Two functions of one name are told apart, and equal ones are refused.
7. Weights are finite; the rule of success reads any number.
"""

from __future__ import annotations

import asyncio

import pytest

from palaestra.envs.verifiers.calling import Reply, rewards_of, success_of
from palaestra.errors import EpisodeFailure, RecipeError
from tests.messages import told

FUNCTIONS = """
import functools
import numpy
import torch

def array(completions, **columns):
    return numpy.array([0.5])

def tensor(completions):
    return torch.tensor([0.5])

def pair(completions, prompts):
    return (0.5,)

def generator(completions, **columns):
    return (0.5 for one in completions)

def by_name(completions, *, answer, **columns):
    return [0.5 * (answer == ["4"])]

def all_by_name(**columns):
    return [0.5 * (columns["completions"] == ["4"])]

def half(completions, factor, answer):
    return [factor * (answer == ["4"])]

partial = functools.partial(half, factor=0.5)
fixed = functools.partial(by_name, answer=["4"])

def logs(completions, **columns):
    columns["log_metric"]("size", 3)
    columns["log_extra"]("said", completions)
    return [0.5]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.5 * (ground_truth == "4"), "acc": True}

def without_score(data_source, solution_str, ground_truth):
    return {"acc": 1.0}

def as_text(completions, **columns):
    return ["0.5"]

def nested(completions, **columns):
    return [[0.5]]

def bare(completions, **columns):
    return torch.tensor(0.5)

def state(completions, trainer_state):
    return [0.5]

def other(response):
    return 0.5

class Made:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completion):
        return self.scale

class NotCalled:
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text(FUNCTIONS)
    return path


def made(written, weights=None, **columns):
    return rewards_of(written, weights, {"prompt": "2 + 2?", "answer": "4", **columns}, where="test")


def called(written, **columns):
    (reward,) = made(written, **columns)
    columns = {"prompt": "2 + 2?", "answer": "4", **columns}
    reply = Reply(text="4", messages=(), prompt="2 + 2?", tokens=(1, 2), columns=columns, place="a.jsonl:1")
    return asyncio.run(reward(reply))


@pytest.mark.parametrize("name", ["array", "tensor", "pair", "generator"])  # rule 1
def test_what_a_function_may_return(file, name):
    assert called(f"{file}:{name}") == (0.5, {})


@pytest.mark.parametrize("name", ["by_name", "all_by_name", "partial", "fixed"])  # rule 2
def test_how_a_function_may_take_columns(file, name):
    assert called(f"{file}:{name}") == (0.5, {})


def test_metrics_by_name(file):
    assert called(f"{file}:logs") == (0.5, {"size": 3.0})


def test_the_right_answer_of_verl(file):  # rule 3
    row = {"data_source": "sums", "reward_model": {"style": "rule", "ground_truth": "4"}, "answer": "a long text"}
    assert called(f"{file}:compute_score", **row) == (0.5, {"acc": 1.0})
    assert called(f"{file}:compute_score", reward_model=None) == (0.5, {"acc": 1.0})


@pytest.mark.parametrize(  # rule 4
    ("name", "word"),
    [
        ("without_score", "no `score`"),
        ("as_text", "'0.5', which is no number"),
        ("nested", "[0.5], which is no number"),
        ("bare", "not a list of 1 number"),
    ],
)
def test_what_is_no_reward(file, name, word):
    with told(EpisodeFailure, word):
        called(f"{file}:{name}")


@pytest.mark.parametrize(  # rule 5
    ("name", "word"),
    [
        ("state", "`trainer_state`"),
        ("other", "The reply is `completion`"),
        ("Made", "keyword-only"),
        ("NotCalled", "__call__"),
    ],
)
def test_what_cannot_be_used(file, name, word):
    with pytest.raises(RecipeError, match=word):  # the messages have the name of a module, which depends on the place
        made(f"{file}:{name}")


@pytest.mark.parametrize(
    ("content", "word"), [("def f(completion) return 1", "line 1"), ("x = 1\nraise OSError('x')", "line 2: OSError")]
)
def test_files_that_cannot_be_loaded(tmp_path, content, word):
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(RecipeError, match=word):
        made(f"{tmp_path}/broken.py:f")


def test_functions_of_one_name(file):  # rule 6
    patterns = [{"regex": {"pattern": "a"}}, {"regex": {"pattern": "b"}}, {"regex": {"pattern": "c"}}]
    assert [reward.name for reward in made(patterns)] == ["regex", "regex_2", "regex_3"]
    with told(RecipeError, "equal"):
        made([patterns[0], "exact_match", patterns[0]])


def test_weights_and_thresholds(file):  # rule 7
    with told(RecipeError, "nan"):
        made("exact_match", [float("nan")])
    rewards = made("exact_match")
    for written, threshold in ((1e-5, 1e-5), ("exact_match > .5", 0.5), ("exact_match >= 1.", 1.0), ("1E-3", 1e-3)):
        assert success_of(written, rewards, where="test").threshold == threshold
