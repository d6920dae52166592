"""Rules of the household: which commands are possible, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from palaestra.envs.worlds.household.house import APPLIANCES, NOWHERE, RESULTS, House, Number, State, accessible

IDLE = ("look", "carried", "examine")  # verbs that change nothing


class Command(NamedTuple):
    """The meaning of a command, whatever its words. `place` is the number of a room if `verb` is "enter"."""

    verb: str
    thing: Number = NOWHERE
    place: Number = NOWHERE


def conceivable(house: House) -> Iterator[Command]:
    """Every command about the rooms, places and things of the house, possible or not."""
    places, things = range(len(house.places)), range(len(house.things))
    yield from (Command("enter", place=room) for room in range(len(house.rooms)))
    yield from (Command(verb, place=place) for verb in ("go", "open", "close", "examine") for place in places)
    verbs = ("take", "put", *APPLIANCES)
    yield from (Command(verb, thing, place) for verb in verbs for thing in things for place in places)
    yield from (Command("examine", thing=thing) for thing in things)
    yield from (Command(verb) for verb in ("use", "look", "carried"))


def visible(house: House, state: State) -> list[Number]:
    """The things at the agent's place, if the agent can look inside."""
    if state.at == NOWHERE or not accessible(house, state, state.at):
        return []
    return [thing for thing, place in enumerate(state.where) if place == state.at]


def possible(house: House, state: State) -> Iterator[Command]:
    """The commands that change or tell something now."""
    at, held = state.at, state.held
    here = [number for number, place in enumerate(house.places) if place.room == state.room]
    yield from (Command("go", place=number) for number in here if number != at)
    yield from (Command("enter", place=room) for room in range(len(house.rooms)) if room != state.room)
    if at != NOWHERE:
        if house.places[at].has_door:
            yield Command("close" if at in state.open else "open", place=at)
        if held == NOWHERE:
            yield from (Command("take", thing, at) for thing in visible(house, state))
        elif accessible(house, state, at):
            yield Command("put", held, at)
        yield from (Command(how, held, at) for how in APPLIANCES if _works(house, state, Command(how, held, at)))
        if at == house.lamp:
            yield Command("use")
        yield Command("examine", place=at)
    yield from (Command("examine", thing=thing) for thing in (*visible(house, state), *([held] if held >= 0 else [])))
    yield from (Command("look"), Command("carried"))


def act(house: House, state: State, command: Command | None, *, slips: bool = False) -> State:
    """The state after a command. A command that is impossible or slips only costs a turn.

    Args:
        command: None for a text that could not be read.
        slips: whether a command that uses the hands fails.
    """
    after = None if command is None else _next(house, state, command)
    if command is not None and slips and command.verb not in ("go", "enter", *IDLE):
        after = None
    if after is None:
        return replace(state, turn=state.turn + 1, said=("nothing", NOWHERE), failed=True)
    return replace(_noticed(house, after), turn=state.turn + 1, failed=False)


def _next(house: House, state: State, command: Command) -> State | None:
    verb, thing, place = command
    here, done = place == state.at, replace(state, said=("done", NOWHERE))
    match verb:
        case "go" if not here and house.places[place].room == state.room:
            return replace(done, at=place)
        case "enter" if place != state.room:
            return replace(done, room=place, at=NOWHERE)
        case "open" if here and house.places[place].has_door and place not in state.open:
            return replace(done, open=state.open | {place})
        case "close" if here and place in state.open:
            return replace(done, open=state.open - {place})
        case "take" if here and state.held == NOWHERE and thing in visible(house, state):
            return replace(done, where=_moved(state, thing, NOWHERE))
        case "put" if here and thing == state.held and accessible(house, state, place):
            return replace(done, where=_moved(state, thing, place))
        case "clean" | "heat" | "cool" if here and _works(house, state, command):
            return replace(done, marks=_marked(state, thing, RESULTS[verb]))
        case "use" if state.at == house.lamp:
            held = state.held
            at_goal = house.goal.name == "look" and held >= 0 and house.things[held][0] == house.goal.kind
            return replace(done, looked=state.looked or at_goal)
        case "look" | "carried":
            return done
        case "examine" if thing >= 0 and thing in (*visible(house, state), state.held):
            return replace(state, said=("thing", thing))
        case "examine" if thing == NOWHERE and here:
            return replace(state, said=("place", place))
    return None


def _works(house: House, state: State, command: Command) -> bool:
    """Whether the appliance at this place changes the carried thing. A clean thing cannot be cleaned again."""
    how, thing, place = command
    right = thing >= 0 and thing == state.held and house.places[place].kind == APPLIANCES[how]
    return right and house.suited(thing, how) and (thing, RESULTS[how]) not in state.marks


def _moved(state: State, thing: Number, place: Number) -> tuple[Number, ...]:
    return (*state.where[:thing], place, *state.where[thing + 1 :])


def _marked(state: State, thing: Number, result: str) -> frozenset[tuple[Number, str]]:
    """The marks with a new one. A thing that becomes hot is no longer cool, and the other way round."""
    gone = {"hot": "cool", "cool": "hot"}.get(result, "")
    return (state.marks | {(thing, result)}) - {(thing, gone)}


def _noticed(house: House, state: State) -> State:
    """The state with what the agent sees from where it stands."""
    seen = state.seen
    if state.at != NOWHERE and accessible(house, state, state.at):
        seen |= {state.at}
    return replace(state, entered=state.entered | {state.room}, seen=seen)
