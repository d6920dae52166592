"""Houses of the household: rooms, places, things and a goal, drawn at random, and the state of a house."""

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
ROOMS = {  # kinds of places, without the appliances; every house has the first of each room, which has no door
    "kitchen": ("counter", "cabinet", "drawer", "table", "shelf"),
    "bedroom": ("bed", "closet", "drawer", "desk", "shelf"),
    "office": ("desk", "safe", "drawer", "sofa", "shelf"),
}
APPLIANCES = {"clean": "sink", "heat": "microwave", "cool": "fridge"}  # all in the kitchen
WITH_DOORS = frozenset({"fridge", "microwave", "cabinet", "drawer", "closet", "safe"})
RESULTS = {"clean": "clean", "heat": "hot", "cool": "cool"}  # what a thing becomes
SUITED: dict[str, tuple[str, ...]] = {  # what can be cleaned, heated, cooled
    "clean": ("mug", "plate", "fork", "towel", "apple", "carrot"),
    "heat": ("mug", "plate", "apple", "egg", "carrot"),
    "cool": ("mug", "plate", "apple", "egg", "carrot"),
}
KINDS = ("mug", "plate", "fork", "towel", "apple", "egg", "carrot", "book", "pen", "key", "phone")
NOWHERE = -1
Number = int  # index of a room, place or thing


@dataclass(frozen=True, slots=True)
class Place:
    """A receptacle, such as `drawer 2`. The lamp stands in one of them."""

    kind: str
    number: int
    room: Number

    @property
    def has_door(self) -> bool:
        """Whether it has a door, which must be open to look or reach inside."""
        return self.kind in WITH_DOORS


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: bring a thing of `kind` to a place of the kind `place`, as `name` says, or look at it under the lamp."""

    name: GoalName
    kind: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What stays the same during an episode.

    Attributes:
        things: (kind, number) of each. start: the first place of each thing. lamp: the place where the lamp stands.
    """

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
        """The things of the goal's kind."""
        return [thing for thing, (kind, _) in enumerate(self.things) if kind == self.goal.kind]

    def targets(self) -> list[Number]:
        """The places of the goal's kind."""
        return [number for number, place in enumerate(self.places) if place.kind == self.goal.place]

    def appliance(self, how: str) -> Number:
        """The place that cleans, heats or cools."""
        return next(number for number, place in enumerate(self.places) if place.kind == APPLIANCES[how])


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a house, and what the agent has seen of it. It is frozen, so a snapshot needs no copy.

    Attributes:
        room: where the agent is. at: its place, or NOWHERE in the middle of the room.
        where: the place of each thing, NOWHERE for the carried one. open: places whose doors are open.
        marks: (thing, "clean" | "hot" | "cool"). looked: whether the agent looked at the goal's thing under the lamp.
        entered: rooms that the agent has entered. seen: places that it has looked into; only the agent itself can
            change them afterwards.
        best: most stages of the goal reached so far. turn: acts so far.
        said: what the observation tells about the last act. failed: whether this act changed and told nothing.
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
        """The carried thing, or NOWHERE."""
        return self.where.index(NOWHERE) if NOWHERE in self.where else NOWHERE


def accessible(house: House, state: State, place: Number) -> bool:
    """Whether an agent that stands at a place can look and reach inside."""
    return place in state.open or not house.places[place].has_door


def ready(house: House, state: State, thing: Number) -> bool:
    """Whether a thing is clean, hot or cool, if the goal asks for that."""
    result = RESULTS.get(house.goal.name)
    return result is None or (thing, result) in state.marks


def delivered(house: House, state: State) -> list[Number]:
    """The things that are ready and lie at a target of the goal."""
    targets = house.targets()
    return [one for one in house.candidates() if state.where[one] in targets and ready(house, state, one)]


def stages(goal: Goal) -> tuple[str, ...]:
    """The sub-goals of a goal, in order."""
    if goal.name == "two":
        return ("take", "put", "take", "put")
    if goal.name == "look":
        return ("take", "look")
    return ("take", "put") if goal.name == "put" else ("take", goal.name, "put")


def stage(house: House, state: State) -> int:
    """How many sub-goals are reached now. The goal is reached if all of them are."""
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


# ---- random houses ----------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def build(
    rooms: int, places: tuple[int, int], things: tuple[int, int], goals: tuple[GoalName, ...], seed: int
) -> House:
    """The house of a seed, with a goal that can be reached and is not reached at the start."""
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
    """1 for the first of each kind, 2 for the second, and so on."""
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
