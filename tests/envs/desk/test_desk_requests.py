"""Customers of `desk` who say in everyday English what they want.

1. A clerk who knows all rules but matches words finds out what customers want if they use the words of the tools, and
   seldom otherwise.
2. The expert serves all customers, and the contract holds. The content of a task does not depend on the words.
3. No sentence has a word of a tool, and no two kinds share a sentence.
4. Neither notes nor rules tell which request it is.
5. With `held_out`, training shares no sentence with the other splits.
"""

from __future__ import annotations

import re

import pytest

from palaestra.envs.worlds.desk.kinds import KINDS
from palaestra.envs.worlds.desk.requests import HALF, SENTENCES
from palaestra.envs.worlds.desk.world import AGENT, Desk
from palaestra.errors import RecipeError
from palaestra.testing import check_environment
from tests.messages import told

ALL = {"tables": 6, "foreign": 0.0}
COMMON = {"order", "the", "of", "my", "a", "how", "is"}  # words that many requests share


def words_of(text: str) -> set[str]:
    return {word.removesuffix("ed").removesuffix("p") for word in re.findall("[a-z]+", text.lower())} - COMMON


def guess(heard: str) -> str | None:
    """The kind of request whose own words occur most often in what the customer said; None, if none occurs."""
    own = {name: {*name.split("_")} | words_of(kind.text[0].partition(" to ")[2]) for name, kind in KINDS.items()}
    score = {name: len(words & words_of(heard)) for name, words in own.items()}
    most = max(score, key=lambda name: score[name])
    return most if score[most] else None


def matched(tasks: int = 80, **options: object) -> float:
    """Share of tasks in which matching finds the request, and the clerk then does the right thing."""
    env, won = Desk(**ALL, **options), 0
    for task in env.tasks("eval", tasks, 0):
        result, heard = env.reset(task), ""
        while result.observations:
            heard += result.observations[AGENT].text.rpartition("user: ")[2] + " "
            result = env.step({AGENT: env.expert(AGENT)})
        wish = env._playing().goal.brief.wishes[0]
        first = next((text for text in wish.text if text in heard), heard)
        won += result.info["success"] and guess(first) == wish.name
    return won / tasks


def test_word_matching_does_not_understand_customers() -> None:  # rule 1
    assert matched() >= 0.95
    assert matched(request="described") <= 0.2


@pytest.mark.parametrize("request_", ["described", "held_out"])
@pytest.mark.parametrize("rules", ["scope", "whole"])
def test_the_expert_serves_them(request_: str, rules: str) -> None:  # rules 2 and 4
    env = Desk(**ALL, request=request_, rules=rules, requests=(1, 2))
    for task in env.tasks("eval", 20, 0):
        result = env.reset(task)
        while result.observations:
            seen = result.observations[AGENT].text
            notes = next(line for line in seen.splitlines() if line.startswith("notes:"))
            assert "request" not in notes
            result = env.step({AGENT: env.expert(AGENT)})
        assert result.info["success"]


def test_contract() -> None:
    env = Desk(request="described")
    check_environment(env, make=lambda: Desk(request="described"))
    task = Desk().tasks("eval", 1, 0)[0]
    assert env.content(env.tasks("eval", 1, 0)[0]) == Desk().content(task)
    assert "request" not in task.params, "tasks of recipes without the option stay as they were"


def test_sentences_have_no_word_of_a_tool() -> None:  # rule 3
    texts = [text for row in SENTENCES.values() for text in row]
    assert SENTENCES.keys() == KINDS.keys() and len(texts) == len(set(texts)) == 2 * HALF * len(KINDS)
    tools = {word for name in KINDS for word in name.split("_")}
    assert not [(text, word) for text in texts for word in re.findall("[a-z]+", text.lower()) if word in tools]


def test_sentences_are_held_out() -> None:  # rule 5
    env = Desk(**ALL, request="held_out", user="open", vague=0.0)
    for split, own in (("train", slice(0, HALF)), ("eval", slice(HALF, None))):
        for task in env.tasks(split, 40, 0):
            said = env.reset(task).observations[AGENT].text
            assert [one for row in SENTENCES.values() for one in row[own] if one in said]


def test_a_chat_model_has_its_own_sentences() -> None:
    with told(RecipeError, "has its own"):
        Desk(request="described", user="chat", chat={"model": "m"})
