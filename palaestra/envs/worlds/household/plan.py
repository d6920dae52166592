"""Plans for the household: a shortest way to the goal, and a search by an agent that has not seen everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from palaestra.envs.worlds.household.house import (
    APPLIANCES,
    NOWHERE,
    House,
    Number,
    State,
    accessible,
    delivered,
    ready,
    stage,
    stages,
)
from palaestra.envs.worlds.household.rules import Command


class _Sketch:
    """Collects commands, and keeps track of where the agent would be and what it would carry after them."""

    __slots__ = ("at", "commands", "held", "house", "opened", "room", "state")

    def __init__(self, house: House, state: State) -> None:
        self.house, self.state = house, state
        self.room, self.at, self.held = state.room, state.at, state.held
        self.opened: set[Number] = set()
        self.commands: list[Command] = []

    def reach(self, place: Number, *, inside: bool) -> None:
        """Go to a place. Open it if the hands must get inside."""
        room = self.house.places[place].room
        if self.at != place:
            if self.room != room:
                self.commands.append(Command("enter", place=room))
            self.commands.append(Command("go", place=place))
            self.room, self.at = room, place
        if inside and place not in self.opened and not accessible(self.house, self.state, place):
            self.commands.append(Command("open", place=place))
            self.opened.add(place)

    def fetch(self, thing: Number) -> None:
        """Take a thing. Another thing that the agent carries stays where this one was."""
        if self.held == thing:
            return
        place = self.state.where[thing]
        self.reach(place, inside=True)
        if self.held != NOWHERE:
            self.commands.append(Command("put", self.held, place))
        self.commands.append(Command("take", thing, place))
        self.held = thing

    def prepare(self, thing: Number) -> None:
        """Clean, heat or cool the carried thing, if the goal asks for that."""
        how = self.house.goal.name
        if how in APPLIANCES and not ready(self.house, self.state, thing):
            appliance = self.house.appliance(how)
            self.reach(appliance, inside=False)
            self.commands.append(Command(how, thing, appliance))

    def deliver(self, place: Number) -> None:
        """Bring the carried thing to a place."""
        self.reach(place, inside=True)
        self.commands.append(Command("put", self.held, place))
        self.held = NOWHERE


def shortest(house: House, state: State) -> list[Command]:
    """Commands of a shortest way to the goal, for an agent that sees everything. Empty if the goal is reached."""
    if stage(house, state) == len(stages(house.goal)):
        return []
    return min(_ways(house, state, house.candidates(), house.targets(), lamp=True), key=len)


def _ways(
    house: House, state: State, things: Sequence[Number], targets: Sequence[Number], *, lamp: bool
) -> Iterator[list[Command]]:
    """Ways to the goal that use only these things and targets. The shortest of such ways is among them.

    Args:
        lamp: whether the agent knows where the lamp is.
    """
    goal, there = house.goal, delivered(house, state)
    left = [thing for thing in things if thing not in there]
    if goal.name == "look":
        for thing in left if lamp else ():
            sketch = _Sketch(house, state)
            sketch.fetch(thing)
            sketch.reach(house.lamp, inside=False)
            yield [*sketch.commands, Command("use")]
        return
    needed = 2 - len(there) if goal.name == "two" else 1
    for chosen in permutations(left, needed):
        if needed == 2 and state.held in left and chosen[0] != state.held:
            continue  # the carried thing goes first: to put it down and come back takes longer
        for places in product(targets, repeat=needed):
            sketch = _Sketch(house, state)
            for thing, place in zip(chosen, places, strict=True):
                sketch.fetch(thing)
                sketch.prepare(thing)
                sketch.deliver(place)
            yield sketch.commands


# ---- without seeing everything ----------------------------------------------------------------------------
def search_then_plan(house: House, state: State) -> Command:
    """The next command of an agent that knows only what it has seen.

    While it knows no way to the goal, it searches, and takes what the goal asks for as soon as it stands before it.
    """
    things = [one for one in house.candidates() if state.where[one] in (NOWHERE, *state.seen)]
    targets = [place for place in house.targets() if house.places[place].room in state.entered]
    how = APPLIANCES.get(house.goal.name)
    equipped = how is None or house.places[house.appliance(house.goal.name)].room in state.entered
    ways = list(_ways(house, state, things, targets, lamp=house.lamp in state.seen)) if equipped else []
    if ways:
        return min(ways, key=len)[0]
    return _first_of_two(house, state, things, targets) or _taken(house, state, things) or _explore(house, state)


def _first_of_two(house: House, state: State, things: Sequence[Number], targets: Sequence[Number]) -> Command | None:
    """The next command that brings the one known thing, if the goal is "two" and the second is not found yet."""
    left = [thing for thing in things if thing not in delivered(house, state)]
    if house.goal.name != "two" or not left or not targets:
        return None
    ways = []
    for thing, place in product(left, targets):
        sketch = _Sketch(house, state)
        sketch.fetch(thing)
        sketch.deliver(place)
        ways.append(sketch.commands)
    return min(ways, key=len)[0]


def _taken(house: House, state: State, things: Sequence[Number]) -> Command | None:
    """The command that takes one of these things here, if the hands are free."""
    here = [thing for thing in things if state.where[thing] == state.at and thing not in delivered(house, state)]
    free = state.held == NOWHERE and state.at in state.seen and accessible(house, state, state.at)
    return Command("take", here[0], state.at) if here and free else None


def _explore(house: House, state: State) -> Command:
    """Open the place here if its contents are unknown. Else go to such a place in this room, else to another room."""
    if state.at != NOWHERE and state.at not in state.seen:
        return Command("open", place=state.at)
    unseen = [number for number in range(len(house.places)) if number not in state.seen]
    for number in unseen:
        if house.places[number].room == state.room:
            return Command("go", place=number)
    rooms = [room for room in range(len(house.rooms)) if room not in state.entered]
    return Command("enter", place=rooms[0] if rooms else house.places[unseen[0]].room)
