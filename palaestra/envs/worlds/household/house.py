"""Houses: rooms, places, things and goals, made at random; and what a house is like at one moment.

Knows what there is and when a goal is reached. Knows nothing of commands, words or agents.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from palaestra.data import derive

GoalName = Literal["put", "clean", "heat", "cool", "two", "look"]
GOALS: tuple[GoalName, ...] = get_args(GoalName)
ROOMS = {  # kinds of places beside the appliances; the first one has no door
    "kitchen": ("counter", "cabinet", "drawer", "table", "shelf"),
    "bedroom": ("bed", "closet", "drawer", "desk", "shelf"),
    "office": ("desk", "safe", "drawer", "sofa", "shelf"),
}
APPLIANCES = {"clean": "sink", "heat": "microwave", "cool": "fridge"}  # all in the kitchen
WITH_DOORS = frozenset({"fridge", "microwave", "cabinet", "drawer", "closet", "safe"})
RESULTS = {"clean": "clean", "heat": "hot", "cool": "cool"}  # what a thing is afterwards
SUITED: dict[str, tuple[str, ...]] = {  # what can be cleaned, heated, cooled
    "clean": ("mug", "plate", "fork", "towel", "apple", "carrot"),
    "heat": ("mug", "plate", "apple", "egg", "carrot"),
    "cool": ("mug", "plate", "apple", "egg", "carrot"),
}
KINDS = ("mug", "plate", "fork", "towel", "apple", "egg", "carrot", "book", "pen", "key", "phone")
NOWHERE = -1
Number = int  # of a room, place or thing


@dataclass(frozen=True, slots=True)
class Place:
    """A receptacle, as in `drawer 2`. The lamp stands in one of them."""

    kind: str
    number: int
    room: Number

    @property
    def has_door(self) -> bool:
        """Whether it must be open to be looked into."""
        return self.kind in WITH_DOORS


@dataclass(frozen=True, slots=True)
class Goal:
    """Bring a thing of `kind` to a place of kind `place` (two, clean, hot or cool), or look at it under the lamp."""

    name: GoalName
    kind: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What stays the same. `things` are (kind, number); `start` tells at which place each is at first."""

    rooms: tuple[str, ...]
    places: tuple[Place, ...]
    things: tuple[tuple[str, int], ...]
    start: tuple[Number, ...]
    lamp: Number
    goal: Goal

    def suited(self, thing: Number, how: str) -> bool:
        """Whether this thing can be cleaned, heated or cooled."""
        return self.things[thing][0] in SUITED[how]

    def candidates(self) -> list[Number]:
        """The things that the goal may be about."""
        return [thing for thing, (kind, _) in enumerate(self.things) if kind == self.goal.kind]

    def targets(self) -> list[Number]:
        """The places that they are to be brought to."""
        return [number for number, place in enumerate(self.places) if place.kind == self.goal.place]

    def appliance(self, how: str) -> Number:
        """The place that cleans, heats or cools."""
        return next(number for number, place in enumerate(self.places) if place.kind == APPLIANCES[how])


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a house is like at one moment, and what the agent knows of it. Frozen: a snapshot is the state itself.

    Attributes:
        room, at: where the agent is; `at` a place, or NOWHERE in the middle of the room.
        where: the place of each thing; NOWHERE for the one that is carried. open: places whose doors are open.
        marks: (thing, "clean" | "hot" | "cool"). looked: whether the goal's thing was looked at by the lamp.
        entered: rooms, and seen: places, that the agent has seen; nothing changes there behind its back.
        best: most stages of the goal that were ever reached. turn: acts so far.
        said: what is told about the last act. failed: whether it changed nothing and told nothing.
    """

    room: Number
    at: Number = NOWHERE
    where: tuple[Number, ...]
    open: frozenset[Number] = frozenset()
    marks: frozenset[tuple[Number, str]] = frozenset()
    looked: bool = False
    entered: frozenset[Number]
    seen: frozenset[Number]
    best: int = 0
    turn: int = 0
    said: tuple[str, Number] = ("start", NOWHERE)
    failed: bool = False

    @property
    def held(self) -> Number:
        """The thing that is carried, or NOWHERE."""
        return self.where.index(NOWHERE) if NOWHERE in self.where else NOWHERE


def accessible(house: House, state: State, place: Number) -> bool:
    """Whether one could look and reach into a place, standing there."""
    return place in state.open or not house.places[place].has_door


def ready(house: House, state: State, thing: Number) -> bool:
    """Whether a thing is as the goal wants it."""
    result = RESULTS.get(house.goal.name)
    return result is None or (thing, result) in state.marks


def delivered(house: House, state: State) -> list[Number]:
    """The things that are as, and where, the goal wants them."""
    targets = house.targets()
    return [one for one in house.candidates() if state.where[one] in targets and ready(house, state, one)]


def stages(goal: Goal) -> tuple[str, ...]:
    """The sub-goals of a goal, in their order."""
    if goal.name == "two":
        return ("take", "put", "take", "put")
    if goal.name == "look":
        return ("take", "look")
    return ("take", "put") if goal.name == "put" else ("take", goal.name, "put")


def stage(house: House, state: State) -> int:
    """How many sub-goals are reached now; all of them: the goal is."""
    goal, held = house.goal, state.held
    whole = len(stages(goal))
    holding = held != NOWHERE and house.things[held][0] == goal.kind
    if goal.name == "look":
        return whole if state.looked else int(holding)
    there = len(delivered(house, state))
    if goal.name == "two":
        return whole if there >= 2 else 2 * there + holding
    if there:
        return whole
    return int(holding) + int(holding and goal.name in RESULTS and ready(house, state, held))


# ---- making one -------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def build(
    rooms: int, places: tuple[int, int], things: tuple[int, int], goals: tuple[GoalName, ...], seed: int
) -> House:
    """A house with a goal that can be reached and is not reached yet."""
    draw = random.Random(derive(seed, "house"))
    made = _places(rooms, draw.randint(*places), draw)
    goal = _goal(draw.choice(goals), made, draw)
    needed = 2 if goal.name == "two" else 1
    kinds = [goal.kind] * needed
    kinds += [draw.choice(KINDS) for _ in range(draw.randint(*things) - needed)]
    draw.shuffle(kinds)
    elsewhere = [number for number, place in enumerate(made) if place.kind != goal.place]
    start = [draw.choice(elsewhere if kind == goal.kind else range(len(made))) for kind in kinds]
    lamps = [number for number, place in enumerate(made) if not place.has_door and place.kind != "sink"]
    return House(
        rooms=tuple(ROOMS)[:rooms],
        places=tuple(made),
        things=tuple(zip(kinds, _numbered(kinds), strict=True)),
        start=tuple(start),
        lamp=draw.choice(lamps),
        goal=goal,
    )


def _places(rooms: int, count: int, draw: random.Random) -> list[Place]:
    kinds = [(0, kind) for kind in APPLIANCES.values()]
    kinds += [(room, list(ROOMS.values())[room][0]) for room in range(rooms)]
    for _ in range(count - len(kinds)):
        room = draw.randrange(rooms)
        kinds.append((room, draw.choice(list(ROOMS.values())[room])))
    kinds.sort(key=lambda one: one[0])
    numbers = _numbered([kind for _, kind in kinds])
    return [Place(kind, number, room) for (room, kind), number in zip(kinds, numbers, strict=True)]


def _numbered(kinds: Sequence[str]) -> list[int]:
    """1 for the first of a kind, 2 for the second …"""
    counts: Counter[str] = Counter()
    numbers = []
    for kind in kinds:
        counts[kind] += 1
        numbers.append(counts[kind])
    return numbers


def _goal(name: GoalName, places: Sequence[Place], draw: random.Random) -> Goal:
    kind = draw.choice(SUITED.get(name, KINDS))
    if name == "look":
        return Goal(name, kind, "")
    kinds = sorted({place.kind for place in places} - {APPLIANCES.get(name)})
    return Goal(name, kind, draw.choice(kinds))
