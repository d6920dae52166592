"""What must hold of `phrase`:

1. It keeps the contract of environments, for all lengths of actions.
2. Actions have `words_min` to `words_max` words and are distinct. Useful and useless ones begin with the same words.
3. Each phrase does what its action of `rooms` does. A decoy only takes a turn.
4. A phrase with words missing or words added cannot be read.
5. A seed has the same house as in `rooms`, with the same vectors and state keys.
6. Random play succeeds in less than 20 % of the mazes, and the expert in all.
"""

from __future__ import annotations

import random

import pytest

from palaestra.data import Action, Task
from palaestra.envs.probes.phrase import BEGINNINGS, DECOYS, Phrase, spell
from palaestra.envs.probes.rooms import ACTIONS, WAIT, Rooms
from palaestra.errors import RecipeError
from palaestra.testing import check_environment
from tests.messages import told

PLAYER = "player"


@pytest.mark.parametrize(("low", "high"), [(3, 6), (2, 2), (6, 6), (4, 5)])
def test_contract(low, high):  # rule 1
    check_environment(Phrase(words_min=low, words_max=high), make=lambda: Phrase(words_min=low, words_max=high))


@pytest.mark.parametrize(("low", "high"), [(3, 6), (2, 2), (6, 6), (2, 5)])
def test_phrases(low, high):  # rule 2
    phrases = spell(low, high)
    assert len(phrases) == len(ACTIONS) + len(DECOYS)
    assert {len(phrase.split()) for phrase in phrases} == set(range(low, high + 1))
    assert set(phrases.values()) == {*ACTIONS, WAIT}
    for verb, beginning in BEGINNINGS.items():
        shared = [phrase for phrase in phrases if phrase.startswith(" ".join(beginning[: low - 1]))]
        assert len(shared) == (4 if verb == "go" else 2)


def test_too_few_words_are_refused():
    with told(RecipeError, "`words_min: 5`"):
        Phrase(words_min=5, words_max=4)
    with pytest.raises(RecipeError, match="words_max"):
        Phrase(words_max=7)


@pytest.mark.parametrize("index", range(len(ACTIONS) + len(DECOYS)))
def test_phrases_do_what_they_stand_for(index):  # rules 3 and 5
    phrase, action = list(spell(3, 6).items())[index]
    for seed in range(10):
        spelled, plain = Phrase(), Rooms()
        first, other = (env.reset(Task(env="x", seed=seed)).observations[PLAYER] for env in (spelled, plain))
        assert (first.text, first.state_key) == (other.text, other.state_key)
        said = spelled.step({PLAYER: Action(text=phrase)}).observations[PLAYER]
        done = plain.step({PLAYER: Action(text=action)}).observations[PLAYER]
        assert (said.text, said.state_key) == (done.text, done.state_key)
        assert (said.vector == done.vector).all()
        spelled.reset(Task(env="x", seed=seed))
        assert spelled.step({PLAYER: Action(value=index)}).observations[PLAYER].text == said.text


def test_decoys_are_offered_and_do_nothing():  # rule 3
    env = Phrase()
    before = env.reset(Task(env="phrase", seed=0)).observations[PLAYER]
    decoys = [phrase for phrase, action in spell(3, 6).items() if action == WAIT]
    assert set(decoys) <= set(before.legal)
    after = env.step({PLAYER: Action(text=decoys[0])})
    assert after.observations[PLAYER].state_key == before.state_key
    assert after.observations[PLAYER].text.startswith("nothing happens")
    assert not after.info.get("invalid")


@pytest.mark.parametrize("text", ["walk slowly", "walk slowly north north", "go north", "take key", "wait", ""])
def test_other_words_cannot_be_read(text):  # rule 4
    env = Phrase()
    before = env.reset(Task(env="phrase", seed=0)).observations[PLAYER]
    result = env.step({PLAYER: Action(text=text)})
    assert result.info["invalid"] == {PLAYER: True}
    assert result.observations[PLAYER].state_key == before.state_key


def test_random_play_rarely_wins_and_the_expert_always():  # rule 6
    env, draw = Phrase(), random.Random(0)
    wins = {"random": 0, "expert": 0}
    for player in wins:
        for task in env.tasks("train", 200, 0):
            result = env.reset(task)
            while result.observations:
                legal = result.observations[PLAYER].legal
                action = env.expert(PLAYER) if player == "expert" else Action(text=draw.choice(legal))
                assert action.text in legal
                result = env.step({PLAYER: action})
            wins[player] += result.info["success"]
    assert wins["expert"] == 200
    assert wins["random"] < 40
