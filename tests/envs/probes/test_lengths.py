"""What must hold of `lengths`:

1. It keeps the contract of environments.
2. Only the first act decides the reward. In turn `short`, only `stop` ends the answer.
3. The expert is right, and its answers have both lengths.
4. A first act that cannot be read is a wrong answer. Lengths in the wrong order are refused.
"""

from __future__ import annotations

import pytest

from palaestra.data import Action
from palaestra.envs.probes.lengths import ACTIONS, AGENT, Lengths
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment


def play(env, acts):
    """Turns, reward and last info of an answer with these acts."""
    env.reset(env.tasks("train", 1, 0)[0])
    for turn, act in enumerate(acts, start=1):
        result = env.step({AGENT: Action(text=act, value=act)})
        if not result.observations:
            return turn, result.rewards[AGENT], result.info
    return None


def test_contract():  # rule 1
    check_environment(Lengths(), make=Lengths, act=lambda seen, draw: Action(text=draw.choice(ACTIONS)))


def test_answers():  # rule 2
    env = Lengths(short=3, long=6)
    assert play(env, ["right", "stop", "stop"]) == (3, 1.0, {"success": True, "right_length": 3})
    assert play(env, ["right", "stop", "wrong", *["stop"] * 3]) == (6, 1.0, {"success": True, "right_length": 6})
    assert play(env, ["stop", "right", "stop"]) == (3, 0.0, {"success": False, "wrong_length": 3})
    assert play(env, ["wrong", *["right"] * 5]) == (6, 0.0, {"success": False, "wrong_length": 6})
    assert play(env, ["right", "wrong"]) is None


def test_expert():  # rule 3
    env, lengths = Lengths(short=3, long=6), []
    for task in env.tasks("train", 40, 0):
        result, turns = env.reset(task), 0
        while result.observations:
            result, turns = env.step({AGENT: env.expert(AGENT)}), turns + 1
        assert result.rewards[AGENT] == 1.0
        lengths.append(turns)
    assert set(lengths) == {3, 6} and 10 < lengths.count(3) < 30


def test_bad_input():  # rule 4
    env = Lengths(short=2, long=3)
    turns, reward, info = play(env, ["?", "stop"])
    assert (turns, reward, info["wrong_length"]) == (2, 0.0, 2)
    for short, long in ((3, 3), (5, 2)):
        with pytest.raises(RecipeError, match="is not below"):
            Lengths(short=short, long=long)
    env.close()
    with pytest.raises(ContractError, match="before `reset`"):
        env.step({AGENT: Action(text="stop", value="stop")})
