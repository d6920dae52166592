"""Write the request of a described goal: in everyday English, without the words that the shop uses."""

from __future__ import annotations

import random
from typing import Literal

from palaestra.data import derive
from palaestra.envs.worlds.shop.catalogue import Catalogue, Goal
from palaestra.envs.worlds.shop.phrases import DESCRIPTIONS, HALF
from palaestra.envs.worlds.shop.words import DEPARTMENTS

Wordings = Literal["shared", "held_out"]
TENS = ("", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "a hundred")
# kind, what it must be, options, price; the first two are for training
FORMS = (
    "I need {kind}{most}. It must be one that {has}.{options}{never}",
    "Please find me {kind} that {has}.{options}{most_alone}{never}",
    "My sister asks for {kind}.{never} She will only take one that {has}.{options}{most_alone}",
    "Could you get {kind} which {has}?{most_alone}{options}{never}",
)
PRICES = (
    "at most {tens} dollars",
    "{cents} cents at the most",
    "no more than {bills} ten-dollar bill{s}",
    "a budget of {tens} bucks",
)


def describe(catalogue: Catalogue, goal: Goal, right: frozenset[int], *, seed: int, half: int | None) -> str:
    """A request for the goal, drawn by the seed.

    One attribute that no right product has is mentioned as unwanted, so that the presence of a description says nothing
    by itself.

    Args:
        right: the products that fulfill the goal.
        half: 0: only descriptions and sentences for training. 1: only the held-out ones. None: all.
    """
    draw = random.Random(derive(seed, "request"))

    def one(texts: tuple[str, ...]) -> str:
        return draw.choice(texts if half is None else texts[half * HALF : (half + 1) * HALF])

    attributes = list(goal.attributes)
    draw.shuffle(attributes)
    has = " and that ".join(one(DESCRIPTIONS[attribute]) for attribute in attributes)
    options = "".join(f" I want {one(DESCRIPTIONS[value])}." for _, value in goal.options)
    there = {attribute for number in right for attribute in catalogue.products[number].attributes}
    absent = [one for one in DEPARTMENTS[goal.department].attributes if one not in there]
    never = f" I do not want one that {one(DESCRIPTIONS[draw.choice(absent)])}." if absent else ""
    most = ""
    if goal.most is not None:
        bills = goal.most // 10
        most = one(PRICES).format(tens=TENS[bills], cents=goal.most * 100, bills=bills, s="s" * (bills != 1))
    return one(FORMS).format(
        kind=one(DESCRIPTIONS[goal.type]),
        has=has,
        options=options,
        never=never,
        most=f" for {most}" if most else "",
        most_alone=f" I can spend {most}." if most else "",
    )
