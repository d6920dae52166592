"""What must hold of `twenty_questions`:

1. It keeps the contract of environments, for many and few objects, and with a cost per question.
2. No two objects have the same attributes. Answers follow the attributes, which differ between worlds.
3. The expert finds each of 32 objects within 7 turns, from any state that can still be won.
4. Guessing at random wins about once in 32 games.
5. The reward is 1 for the right guess, 0 for a wrong one, minus the cost of each question. A guess ends the game.
6. When no question is left, anything but the right guess loses. The episode is terminated, never truncated.
7. An act that cannot be read costs a question and is marked. A repeated question costs one, too.
8. The state key has the answers and the questions left, never the object.
9. Text and vector tell the same. Indices are actions.
10. Objects that cannot be told apart are refused.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.probes.twenty_questions import ATTRIBUTES, OBJECTS, TwentyQuestions, build
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

PLAYER = "player"


def start(seed=0, **options):
    env = TwentyQuestions(**options)
    return env, env.reset(Task(env="twenty_questions", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


def finish(env, result):
    turns = 0
    while result.observations:
        result, turns = env.step({PLAYER: env.expert(PLAYER)}), turns + 1
    return result, turns


@pytest.mark.parametrize(
    "options", [{}, {"objects": 2, "attributes": 1, "questions": 1}, {"world": 5, "question_cost": 0.1}]
)
def test_contract(options):  # rule 1
    check_environment(TwentyQuestions(**options), make=lambda: TwentyQuestions(**options))


def test_objects_differ():  # rule 2
    world = build(32, 10, 0)
    assert len(set(world.truth)) == 32
    assert {len(own) for own in world.truth} == {10}
    assert build(32, 10, 1).truth != world.truth
    assert len(set(build(32, 5, 3).truth)) == 32
    assert (len(set(OBJECTS)), len(set(ATTRIBUTES))) == (32, 16)


@pytest.mark.parametrize("number", [0, 7, 31])
def test_answers_are_true(number):  # rule 2
    world = build(32, 10, 0)
    for place, attribute in enumerate(ATTRIBUTES[:10]):
        env, _ = start(2 * number)
        seen = act(env, f"ask {attribute}").observations[PLAYER]
        assert seen.text.startswith("yes" if world.truth[number][place] else "no")


def test_the_expert_finds_every_object():  # rule 3
    for number in range(32):
        result, turns = finish(*start(2 * number))
        assert result.info["success"]
        assert 5 <= turns <= 7


@pytest.mark.parametrize("seed", range(8))
def test_the_expert_goes_on_from_anywhere(seed):  # rule 3
    env, result = start(seed)
    draw = random.Random(seed)
    for _ in range(3):
        result = act(env, f"ask {draw.choice(ATTRIBUTES[:10])}")
    assert finish(env, result)[0].info["success"]


def test_guessing_is_hard():  # rule 4
    env, draw, wins = TwentyQuestions(), random.Random(0), 0
    for task in env.tasks("train", 600, 0):
        env.reset(task)
        wins += act(env, f"guess {draw.choice(OBJECTS)}").info["success"]
    assert 5 <= wins <= 40


@pytest.mark.parametrize(("guess", "reward"), [("apple", 1.0), ("anchor", 0.0)])
def test_a_guess_ends_the_game(guess, reward):  # rule 5
    env, _ = start(0)
    result = act(env, f"guess {guess}")
    assert (result.rewards, result.observations, result.terminated) == ({PLAYER: reward}, {}, {PLAYER})
    assert result.info == {"success": bool(reward)}


def test_questions_may_cost():  # rule 5
    env, _ = start(0, question_cost=0.25)
    assert act(env, "ask red").rewards == {PLAYER: -0.25}
    assert act(env, "ask red", "guess apple").rewards == {PLAYER: 1.0}
    assert act(start(0)[0], "ask red").rewards == {PLAYER: 0.0}


@pytest.mark.parametrize(("last", "won"), [("guess apple", True), ("ask round", False), ("??", False)])
def test_questions_run_out(last, won):  # rule 6
    env, _ = start(0, questions=2)
    seen = act(env, "ask red", "ask old").observations[PLAYER]
    assert "0 left" in seen.text
    assert all(action.startswith("guess") for action in seen.legal)
    assert env.expert(PLAYER).text.startswith("guess")
    result = act(env, last)
    assert (result.observations, result.terminated, result.truncated) == ({}, {PLAYER}, frozenset())
    assert result.info["success"] is won
    assert result.rewards == {PLAYER: float(won)}


@pytest.mark.parametrize("action", ["dance", "", 99, -1, np.zeros(2)])
def test_unreadable_actions_cost_a_question(action):  # rule 7
    env, before = start(0)
    after = env.step({PLAYER: Action(value=action)})
    assert after.info == {"invalid": {PLAYER: True}}
    assert after.observations[PLAYER].text == "not understood. known: nothing. 9 left."
    assert before.observations[PLAYER].text == "guess what it is. known: nothing. 10 left."


def test_asking_again_costs_too():  # rule 7
    env, _ = start(0)
    once = act(env, "ask red").observations[PLAYER].state_key
    twice = act(env, "ask red").observations[PLAYER].state_key
    assert (once.rpartition("/")[0], once[-1], twice[-1]) == (twice.rpartition("/")[0], "9", "8")


def test_keys_say_what_is_known():  # rule 8
    keys = {start(seed)[1].observations[PLAYER].state_key for seed in range(64)}
    assert len(keys) == 1
    one, two = (act(start(0)[0], *asked).observations[PLAYER].state_key for asked in (ORDER, ORDER[::-1]))
    assert one == two


ORDER = ("ask red", "ask heavy")


def test_text_and_vector_agree():  # rule 9
    env, result = start(10)
    while result.observations:
        seen = result.observations[PLAYER]
        known = seen.text.partition("known: ")[2].partition(".")[0].split()
        pairs = dict(zip(known[::2], known[1::2], strict=True)) if known != ["nothing"] else {}
        for place, attribute in enumerate(ATTRIBUTES[:10]):
            said = {"yes": [1, 0], "no": [0, 1], None: [0, 0]}[pairs.get(attribute)]
            assert seen.vector[2 * place : 2 * place + 2].tolist() == said
        assert seen.vector[-1] == pytest.approx((10 - len(pairs)) / 10)
        result = env.step({PLAYER: env.expert(PLAYER)})


def test_indices_are_actions():  # rule 9
    env, _ = start(0)
    assert env.action_count == len(env.actions) == 42
    by_index = env.step({PLAYER: Action(value=np.int64(3))}).observations[PLAYER]
    assert by_index.text == act(start(0)[0], f" ASK  {ATTRIBUTES[3]} ").observations[PLAYER].text


def test_too_few_attributes_are_refused():  # rule 10
    with told(RecipeError, "`attributes` to 4 or more"):
        TwentyQuestions(objects=9, attributes=3)


def test_step_before_reset_is_refused():
    with pytest.raises(ContractError, match="before `reset`"):
        act(TwentyQuestions(), "ask red")
