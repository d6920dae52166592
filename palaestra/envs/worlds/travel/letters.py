"""Write a request in everyday English, as a letter of the traveler, without the words of the tools.

The first two of four sentences are for training, and the last two are held out if the option `wordings` asks for it.
Towns keep their names. Numbers are written in words.
"""

from __future__ import annotations

import random
from typing import Literal

from palaestra.data import derive
from palaestra.envs.worlds.travel.trip import Request
from palaestra.envs.worlds.travel.words import TOWNS

HowAsked = Literal["names", "described"]
Wordings = Literal["shared", "held_out"]
HALF = 2  # sentences for training

LEG = (
    "On the {day} day I go from {start} to {end}.",
    "The {day} morning shall find me in {start}, and the same evening in {end}.",
    "When the {day} day comes I leave {start} behind for {end}.",
    "The {day} day begins in {start}, and after it I want to sleep in {end}.",
)
UNTIL = (
    "There I remain up to the {day} day.",
    "I check out on the {day} day.",
    "My rest there ends with the {day} morning.",
    "The {day} day is the last one of my vacation.",
)
TRAINS = (
    "I am afraid of heights above the clouds, so keep me on the ground.",
    "Nothing with wings, please.",
    "My doctor wants me to go by rail alone.",
    "I never set foot on an aircraft.",
)
STARS = (
    "I sleep badly in houses that have fewer than {number} of those on the door.",
    "The guide must have rated my bed with {number} at the least.",
    "The lowest class of lodging that I accept is {number}.",
    "Less than {number} asterisks beside its name, and I will not stay there.",
)
SIGHTS = {
    "museum": ("old paintings", "a hall of antiques", "the art collection", "dinosaur bones behind glass"),
    "castle": ("a place of knights", "the rooms of a king", "battlements and a moat", "where the queen was crowned"),
    "market": ("stalls with cheese", "a square of traders", "where farmers sell eggs", "bargains on a plaza"),
    "park": ("lawns with old trees", "a lake with swans", "a place for a picnic", "paths among flowers"),
    "tower": ("the highest lookout", "four hundred steps up", "roofs from above", "a belfry"),
    "zoo": ("elephants and apes", "lions behind bars", "penguins being fed", "giraffes"),
}
SIGHT = (
    "While in {town} I cannot miss this: {sight}.",
    "In {town}, show me {sight}.",
    "My children dream of {sight} in {town}.",
    "A friend raves about {town}, above all about {sight}.",
)
LEAVE = (
    "I cannot set out before {hour} o'clock on the first of these days.",
    "Let the journey begin at {hour} o'clock at the earliest.",
    "I get up late: nothing may go before {hour} o'clock when it all begins.",
    "Until {hour} o'clock I am at work on the day that I depart.",
)
ARRIVE = (
    "At the very end I have to be there at {hour} o'clock.",
    "My last ride must be over when it strikes {hour} o'clock.",
    "Somebody expects me at {hour} o'clock after the final ride.",
    "When all is over, {hour} o'clock is the latest for my return.",
)
BUDGET = (
    "All in all I can spend {number}.",
    "My purse holds {number}, and not a coin more.",
    "It may cost me {number} in total.",
    "I have saved {number} for everything together.",
)
ORDINALS: tuple[str, ...] = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth")
ORDINALS += ("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth")
SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """A number below a million in words.

    >>> in_words(17), in_words(40), in_words(342), in_words(1205)
    ('seventeen', 'forty', 'three hundred forty-two', 'one thousand two hundred five')
    """
    if number < 20:
        return SMALL[number]
    if number < 100:
        return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = f" {in_words(number % size)}" if number % size else ""
    return f"{in_words(number // size)} {name}{rest}"


def describe(request: Request, *, seed: int, half: int | None) -> str:
    """The letter of a request, drawn by the seed. The legs are in their order, and the wishes in a random one.

    Args:
        half: 0: only sentences for training. 1: only the held-out ones. None: all.
    """
    draw = random.Random(derive(seed, "letter"))

    def one(texts: tuple[str, ...], **words: str) -> str:
        return draw.choice(texts if half is None else texts[half * HALF : (half + 1) * HALF]).format(**words)

    trip = [one(LEG, day=ORDINALS[leg.day], start=TOWNS[leg.start], end=TOWNS[leg.end]) for leg in request.legs]
    trip += [] if request.until is None else [one(UNTIL, day=ORDINALS[request.until])]
    wishes = [one(TRAINS)] if request.trains else []
    if request.stars:
        wishes.append(one(STARS, number=in_words(request.stars)))
    if request.sight is not None:
        wishes.append(one(SIGHT, town=TOWNS[request.sight[0]], sight=one(SIGHTS[request.sight[1]])))
    if request.leave is not None:
        wishes.append(one(LEAVE, hour=in_words(request.leave)))
    if request.arrive is not None:
        wishes.append(one(ARRIVE, hour=in_words(request.arrive)))
    if request.budget is not None:
        wishes.append(one(BUDGET, number=in_words(request.budget)))
    draw.shuffle(wishes)
    return " ".join([*trip, *wishes])
