"""Write the task of a household, and what happens, in everyday English. The task has no words of the house.

A word of the house stands before four descriptions of it. The first two are for training, and the last two are held out
if the option `wordings` asks for it. Things are noun phrases. Places say where something should be. Results say how a
thing should be.
"""

from __future__ import annotations

import random
from typing import Literal

from palaestra.data import derive
from palaestra.envs.worlds.household.house import RESULTS, Goal

HowAsked = Literal["names", "described"]
Wordings = Literal["shared", "held_out"]
HALF = 2  # descriptions for training

THINGS = """
mug | something to drink cocoa from | the vessel for my morning coffee | what tea is poured into | a cup with a handle
plate | something flat to eat dinner from | a round dish for pasta | crockery for a steak | what lasagna is served on
fork | something with four prongs | cutlery to pick up noodles | what lies to the left of a knife | a tool to spear peas
towel | something to dry my hands | a cloth for after a bath | what swimmers wrap around them | the terry fabric
apple | a fruit that fell on Newton | the fruit for a strudel | what keeps the doctor away | a cider fruit
egg | something that a hen laid | what an omelet is made of | the oval thing with a yolk | an ingredient with a shell
carrot | something orange that rabbits nibble | the nose of a snowman | a root for a stew | a vegetable for good eyes
book | something with chapters | a novel to read | what a librarian lends out | a bound volume
pen | something to sign a contract with | a thing with ink | what I write letters with | a ballpoint
key | something that opens the front lock | a small metal thing for a padlock | what a locksmith cuts | a door opener
phone | something to call my mother with | a device that rings | what I text my friends on | a handset
"""
PLACES = """
fridge | where milk stays fresh | behind the coldest door | where leftovers wait at four degrees | next to the ice cubes
microwave | where waves make popcorn | on the turning glass dish | in what beeps at the end | where frozen meals thaw
sink | under the faucet | where the dishes soak | where water runs down a drain | beside the tap
counter | where the cook chops onions | on the surface beside the stove | on the worktop | where dough is rolled
cabinet | in the cupboard | behind the doors above the stove | where the pots are stacked | in the wall unit with hinges
drawer | in something that slides out | in a box with a knob | in what glides on rails | where socks lie folded
table | where the family dines | on the four legs with a cloth | where one sits down for supper | where toasts are made
shelf | on the board on the wall | where novels stand in a row | on a plank held by brackets | where vases are shown
bed | where one sleeps | on the mattress | under the blanket | where I lie at night
closet | where coats hang | in the wardrobe | among the shirts on hangers | where clothes are kept
desk | where homework is done | where one writes letters | in front of the swivel chair | where bills are paid
sofa | on the couch | where one watches television | between the cushions | on the seat for three
safe | in the strongbox | where jewels are locked up | behind the steel door with a code | where burglars look first
"""
HOW = """
clean | without a speck of dirt | freshly washed | spotless | scrubbed until it shines
hot | steaming | at the temperature of fresh soup | so warm that it hurts to touch | just off the boil
cool | chilly to the touch | at winter temperature | frosty | no warmer than ice water
"""
# The first two are for training.
PUT = (
    "I would like to find {thing} {place}.",
    "{Thing} belongs {place}.",
    "Would you see to it that {thing} ends up {place}?",
    "My guests will look for {thing} {place}.",
)
CHANGED = (
    "I would like to find {thing} {place}, {how}.",
    "{Thing} belongs {place}, but {how}.",
    "Would you see to it that {thing} ends up {place}, and that it is {how}?",
    "My guests will look for {thing} {place}, and they want it {how}.",
)
TWO = (
    "I would like to find a pair of these {place}: {thing}.",
    "{Thing}: twice that belongs {place}.",
    "Would you see to it that one and another one of these end up {place}: {thing}?",
    "Each of my twins will look for one of these {place}: {thing}.",
)
LOOK = (
    "I would like to know how {thing} looks under a bright bulb.",
    "Hold {thing} in good light.",
    "Would you inspect {thing} where it is brightest?",
    "My eyes are weak: study {thing} beside a switched-on light.",
)
TOLD = {
    "start": ("A new day begins.", "You wake up.", "Here is your first task.", "You have just arrived."),
    "nothing": ("That leads nowhere.", "Nothing comes of it.", "You try in vain.", "It has no effect."),
    "done": ("That worked.", "You have managed it.", "It is as you wanted.", "All right."),
    "here": (
        "You are in the {room}{at} with {held} in your hands.",
        "The {room} is around you{at}; your hands hold {held}.",
        "You find yourself in the {room}{at}, and {held} is what you carry.",
        "You look around the {room}{at}. In your arms: {held}.",
    ),
    "listed": (
        "In the {room} there is: {places}.",
        "{room}: {places}.",
        "The {room} has {places}.",
        "You know the {room}: {places}.",
    ),
}  # what happens, and where the agent is


def _read(table: str) -> dict[str, tuple[str, ...]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return {word: tuple(texts) for word, *texts in rows}


DESCRIPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "thing": _read(THINGS),
    "place": _read(PLACES),
    "how": _read(HOW),
}


class Speech:
    """The words of one episode, drawn by the seed.

    Args:
        half: 0: only descriptions and sentences for training. 1: only the held-out ones. None: all.
    """

    def __init__(self, seed: int, half: int | None) -> None:
        self._seed, self._half = seed, half

    def task(self, goal: Goal) -> str:
        """The task of a goal."""
        draw = random.Random(derive(self._seed, "request"))
        thing = self._one(draw, DESCRIPTIONS["thing"][goal.kind])
        place = self._one(draw, DESCRIPTIONS["place"][goal.place]) if goal.place else ""
        how = self._one(draw, DESCRIPTIONS["how"][RESULTS[goal.name]]) if goal.name in RESULTS else ""
        form = self._one(draw, {"two": TWO, "look": LOOK, "put": PUT}.get(goal.name, CHANGED))
        return form.format(thing=thing, Thing=thing[0].upper() + thing[1:], place=place, how=how)

    def tell(self, kind: str, turn: int, **words: str) -> str:
        """A sentence of TOLD with these words. Each turn draws its own."""
        return self._one(random.Random(derive(self._seed, kind, turn)), TOLD[kind]).format(**words)

    def _one(self, draw: random.Random, texts: tuple[str, ...]) -> str:
        return draw.choice(texts if self._half is None else texts[self._half * HALF : (self._half + 1) * HALF])
