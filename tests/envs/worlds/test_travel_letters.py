"""Described requests of `travel`.

1. A script that matches words, with a perfect planner behind it, fulfills requests that are put in names, and few that
   are described.
2. The expert fulfills all of them, and the contract holds. The request has the same content, however it is put.
3. No sentence has a word of the tools, and no two meanings share a sentence.
4. With held-out wordings, training shares no sentence with the other splits.
"""

from __future__ import annotations

import re

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.travel import letters
from palaestra.envs.worlds.travel.country import SIGHTS as KINDS
from palaestra.envs.worlds.travel.planner import best
from palaestra.envs.worlds.travel.trip import Leg, Request, price_of
from palaestra.envs.worlds.travel.verifier import checks
from palaestra.envs.worlds.travel.words import TOWNS
from palaestra.envs.worlds.travel.world import AGENT, Travel
from palaestra.errors import RecipeError
from palaestra.testing import check_environment
from tests.messages import told

DESCRIBED = {"request": "described"}
SENTENCES = {
    name: getattr(letters, name) for name in ("LEG", "UNTIL", "TRAINS", "STARS", "SIGHT", "LEAVE", "ARRIVE", "BUDGET")
}


def matched(text: str) -> Request:
    """The request that a script finds in a text: its numbers, towns and the words of the tools."""
    days = {word: number for number, word in enumerate(letters.ORDINALS)} | {str(n): n for n in range(13)}
    towns = [TOWNS.index(word) for word in re.findall("|".join(TOWNS), text)]
    named = [
        days[word]
        for word in re.findall(r"day (\d+) [a-z]+ to|(?<=the )(\w+)(?= day| morning)", text)
        for word in word
        if word in days
    ]
    legs = [Leg(start, end, day) for start, end, day in zip(towns[::2], towns[1::2], named, strict=False)]

    def number(pattern: str) -> int | None:
        found = re.search(pattern, text)
        return int(found[1]) if found else None

    sight = re.search(rf"see ({'|'.join(KINDS)}) in ({'|'.join(TOWNS)})", text)
    return Request(
        legs=tuple(legs),
        trains="no flights" in text,
        stars=number(r"(\d+) stars") or 0,
        sight=(TOWNS.index(sight[2]), sight[1]) if sight else None,
        leave=number(r"leave from (\d+)"),
        arrive=number(r"arrive by (\d+)"),
        budget=number(r"budget (\d+)"),
    )


def success_of(tasks: int = 60, **options: object) -> float:
    env, won = Travel(**options, wishes=(3, 5)), 0
    for task in env.tasks("eval", tasks, 0):
        text = env.reset(task).observations[AGENT].text
        country, right = env.state.country, env.state.request
        meant = matched(text)
        plan = best(country, meant, (), lambda one, meant=meant: price_of(meant, one)) if meant.legs else None
        won += plan is not None and all(checks(country, right, plan).values())
    return won / tasks


def test_word_matching_fails_on_letters() -> None:  # rule 1
    assert success_of() >= 0.95
    assert success_of(**DESCRIBED) <= 0.1


@pytest.mark.parametrize("wordings", ["shared", "held_out"])
def test_the_expert_fulfills_them(wordings: str) -> None:  # rule 2
    env = Travel(**DESCRIBED, wordings=wordings)
    for task in env.tasks("eval", 12, 0):
        result = env.reset(task)
        while result.observations:
            result = env.step({AGENT: Action(text=env.expert(AGENT).text)})
        assert result.info["success"]


def test_contract() -> None:
    check_environment(Travel(**DESCRIBED), make=lambda: Travel(**DESCRIBED))
    task = Travel().tasks("eval", 1, 0)[0]
    assert Travel().content(task) == Travel(**DESCRIBED).content(task)


def test_sentences_have_no_word_of_the_tools() -> None:  # rule 3
    texts = [text for row in (*SENTENCES.values(), *letters.SIGHTS.values()) for text in row]
    assert letters.SIGHTS.keys() == {*KINDS} and len(texts) == len(set(texts)) == 4 * (len(SENTENCES) + len(KINDS))
    words = {*KINDS, *(f"{kind}s" for kind in KINDS), "train", "trains", "flight", "flights", "hotel", "hotels"}
    words |= {"star", "stars", "budget", "arrive", "pois", "route"}
    assert not [(text, word) for text in texts for word in re.findall("[a-z]+", text.lower()) if word in words]
    assert not [text for text in texts if re.search(r"\d", text)]
    env = Travel(**DESCRIBED)
    for task in env.tasks("train", 40, 0):
        first = env.reset(task).observations[AGENT].text.splitlines()[0]
        assert not re.search(r"\d", first), "numbers are in words"
        assert sum(first.count(town) for town in TOWNS) >= 2 * len(env.state.request.legs)


def test_wordings_are_held_out() -> None:  # rule 4
    env = Travel(**DESCRIBED, wordings="held_out")
    rows = [tuple(text.split("{")[0] for text in row) for row in SENTENCES.values()] + [*letters.SIGHTS.values()]
    for split, other in (("train", slice(letters.HALF, None)), ("eval", slice(0, letters.HALF))):
        for task in env.tasks(split, 40, 0):
            text = env.reset(task).observations[AGENT].text
            assert not [one for row in rows for one in row[other] if len(one) > 8 and one in text]


def test_renamed_words_cannot_be_described() -> None:
    with told(RecipeError, "described request"):
        Travel(**DESCRIBED, vocabulary="renamed")
