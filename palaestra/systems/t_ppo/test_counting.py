"""The environment `counting`:

1. It keeps the contract of environments, for one symbol per turn and for several.
2. Letters are copied and marks are counted cyclically; an episode has one turn per chunk.
3. Lengths differ widely: short rows are as frequent as rows of twice their length.
4. The result is known at the end only, and one mistake makes it a failure; the expert makes none.
5. A symbol that cannot be read, is missing, or was not asked for, is a mistake.
6. One observation has all that matters: the next right answer follows from its vector, and it shows a mistake.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.errors import ContractError, RecipeError
from palaestra.systems.t_ppo.counting import AGENT, Counting, answers
from palaestra.testing import check_environment

SHORT = {"shortest": 6, "longest": 20}


@pytest.mark.parametrize("chunk", [1, 4])
def test_contract(chunk):  # rule 1
    def make():
        return Counting(chunk=chunk, **SHORT)

    check_environment(make(), make=make, act=lambda seen, draw: Action(text=draw.choice(["a", "a b", "1 c d a"])))


def test_answers():  # rule 2
    assert answers("ab#a##c#", 3) == ["a", "b", "1", "a", "2", "3", "c", "1"]


@pytest.mark.parametrize("chunk", [1, 4])
def test_turns(chunk):  # rule 2
    env = Counting(chunk=chunk, **SHORT)
    for task in env.tasks("train", 20, 0):
        turns, result = 0, env.reset(task)
        length = int(result.observations[AGENT].text.split(" . ")[2].split()[0])
        while result.observations:
            result, turns = env.step({AGENT: env.expert(AGENT)}), turns + 1
        assert turns == -(-length // chunk)


def test_lengths():  # rule 3
    env = Counting()
    lengths = [len(answers(_row(env, task), 4)) for task in env.tasks("train", 400, 0)]
    assert min(lengths) >= 64 and max(lengths) <= 200
    assert abs(statistics.median(lengths) - (64 * 200) ** 0.5) < 8
    assert max(lengths) / statistics.fmean(lengths) > 1.5


def _row(env, task):
    env.reset(task)
    return env.state.row


def play(env, task, slip_at=None):
    """The last result, all rewards, and all info before the end."""
    result, rewards, early, turn = env.reset(task), [], {}, 0
    while result.observations:
        action = env.expert(AGENT)
        if turn == slip_at:
            action = Action(text=next(symbol for symbol in env.actions if symbol != action.text))
        early |= result.info
        result, turn = env.step({AGENT: action}), turn + 1
        rewards.append(result.rewards[AGENT])
    return result, rewards, early


def test_result_at_the_end():  # rule 4
    env = Counting(**SHORT)
    for task in env.tasks("train", 10, 0):
        result, rewards, early = play(env, task)
        assert result.info == {"success": True, "score": 1.0}
        assert rewards[-1] == 1 and not any(rewards[:-1]) and "success" not in early
        result, rewards, _ = play(env, task, slip_at=2)
        assert result.info["success"] is False and not any(rewards)
        assert 0 < result.info["score"] < 1


def test_slips():  # rule 5
    env = Counting(chunk=2, **SHORT)
    task = Task(env="counting", seed=4)
    for text, slips, invalid in (("a ?", 2, True), ("", 2, True), ("{0}", 1, False), ("{0} {1} {1}", 1, False)):
        env.reset(task)
        said = text.format(*env.expert(AGENT).text.split())
        result = env.step({AGENT: Action(text=said)})
        assert env.state.slips == slips, text
        assert bool(result.info.get("invalid")) is invalid


def test_one_observation_is_enough():  # rule 6
    env, right = Counting(**SHORT), {}
    for task in env.tasks("train", 60, 0):
        result = env.reset(task)
        while result.observations:
            seen, action = result.observations[AGENT], env.expert(AGENT)
            known = (seen.vector[:10] > 0).tobytes()  # item and last number
            assert right.setdefault(known, action.value) == action.value
            assert seen.vector[10] == 0 and "no slip" in seen.text
            result = env.step({AGENT: action})
    env.reset(task)
    wrong = next(symbol for symbol in env.actions if symbol != env.expert(AGENT).text)
    seen = env.step({AGENT: Action(text=wrong)}).observations[AGENT]
    assert seen.vector[10] == 1 and "a slip" in seen.text
    assert seen.vector.dtype == np.float32 and len(seen.vector) == env.vector_size


def test_bad_input():
    with pytest.raises(RecipeError, match="shortest 30 is more than longest 20"):
        Counting(shortest=30, longest=20)
    with pytest.raises(RecipeError, match="letters"):
        Counting(letters=9)
    with pytest.raises(ContractError, match="before `reset`"):
        Counting().expert(AGENT)
