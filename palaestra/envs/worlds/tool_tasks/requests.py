"""Write a built-in question in everyday English, without the words of the table.

A word of the table stands before four descriptions of it. The first two are for training, and the last two are held out
if the option `wordings` asks for it. Goods are noun phrases, and columns have a place for one.
"""

from __future__ import annotations

import random
from typing import Literal

from palaestra.data import derive
from palaestra.envs.worlds.tool_tasks.goods import Problem

HowAsked = Literal["names", "described"]
Wordings = Literal["shared", "held_out"]
HALF = 2  # descriptions for training

GOODS = """
apple | the fruit of a strudel | the fruit that fell on Newton | the thing for a crumble | what cider is made of
bread | the thing to make toast of | the loaf | what a baker takes out of the oven | the bottom of every sandwich
candle | the thing of wax with a wick | what burns on a cake | the stick that melts | what monks read by
drum | the instrument that is beaten | what a marching band bangs | the thing under two sticks | the loud thing on stage
engine | the machine that drives a car | what is under the hood | the motor | what makes a train pull
flute | the wind instrument | what Pan played | the pipe with finger holes | what a snake charmer blows
glove | the thing to wear on a hand | what keeps fingers warm | the clothing with five holes | what a boxer pulls on
hammer | the tool for nails | what Thor throws | what a carpenter swings | what a judge knocks with
iron | what takes creases out of shirts | the hot tool of a laundry | what smooths linen | what flattens a blouse
jar | the glass for jam | the vessel with a lid for cookies | what honey is kept in | the container for pickles
kettle | the thing that boils water for tea | what whistles | what is put on for tea | the pot with a spout
lamp | the thing that lights up a room | what a genie lives in | what shines by the bed | the thing with a bulb
"""
COLUMNS = """
price | what one pays for {x} | the cost of {x} | the dollars that {x} is worth | how much money buys {x}
weight | how heavy {x} is | what the scales show for {x} | the kilos of {x} | how hard {x} presses on the ground
stock | how often the shop still has {x} | the supply of {x} | how many times {x} lies in store | the number left of {x}
"""
SIGNS = """
+ | Add {x}. | Then count {x} on top. | Put {x} to it. | Raise that by {x}.
- | Subtract {x}. | Then take {x} away. | Reduce that by {x}. | Leave off {x}.
* | Multiply this by {x}. | Then take it as many times as {x}. | Scale it by {x}. | Repeat that sum according to {x}.
"""
FIRST = ("Begin with {x}.", "Take {x}.", "Start from {x}.", "Find out {x}.")
LAST = ("What comes out?", "What is the result?", "Which number is that?", "How much does that make?")


def _read(table: str) -> dict[str, tuple[str, ...]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return {word: tuple(texts) for word, *texts in rows}


DESCRIPTIONS: dict[str, tuple[str, ...]] = _read(GOODS) | _read(COLUMNS)
STEPS: dict[str, tuple[str, ...]] = _read(SIGNS)


def describe(problem: Problem, *, seed: int, half: int | None) -> str:
    """The question of a problem, drawn by the seed, with the words that the tools know.

    Args:
        half: 0: only descriptions and sentences for training. 1: only the held-out ones. None: all.
    """
    draw = random.Random(derive(seed, "request"))

    def one(texts: tuple[str, ...]) -> str:
        return draw.choice(texts if half is None else texts[half * HALF : (half + 1) * HALF])

    facts = [one(DESCRIPTIONS[column]).format(x=one(DESCRIPTIONS[name])) for name, column in problem.facts]
    forms = [FIRST, *(STEPS[sign] for sign in problem.signs)]
    said = [one(form).format(x=fact) for form, fact in zip(forms, facts, strict=True)]
    known = f"(The table has {', '.join(problem.names)}, each with {', '.join(problem.words.columns)}.)"
    return " ".join([*said, one(LAST), known])
