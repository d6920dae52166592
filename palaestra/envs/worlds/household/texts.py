"""Texts of the household: how commands are written and read, and what an agent is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.worlds.household.house import NOWHERE, RESULTS, House, Number, State, accessible
from palaestra.envs.worlds.household.requests import Speech
from palaestra.envs.worlds.household.rules import IDLE, Command, conceivable, possible
from palaestra.envs.worlds.household.words import Vocabulary

View = Literal["full", "remembered", "here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What observations show.

    Attributes:
        view: whose contents: those of all places, of the places seen so far, or of the agent's place.
        idle: whether the commands that change nothing exist.
        brief: whether only the first observation has the task and the list of places.
        commands: whether observations end with the possible commands.
    """

    view: View = "remembered"
    idle: bool = True
    brief: bool = False
    commands: bool = False


class Wording:
    """Writes and reads the commands of one house, and describes its states.

    Args:
        style: what observations show.
        speech: writes the task and what happens in everyday English; None: they have fixed words.
    """

    def __init__(self, house: House, vocabulary: Vocabulary, style: Style, speech: Speech | None = None) -> None:
        self._speech, self._brief, self._commands = speech, style.brief, style.commands
        self._house, self._words, self._view, self._idle = house, vocabulary, style.view, style.idle
        word = vocabulary.words
        self._rooms = [word[room] for room in house.rooms]
        self._places = [f"{word[place.kind]} {place.number}" for place in house.places]
        self._things = [f"{word[kind]} {number}" for kind, number in house.things]
        self._task = self._goal() if speech is None else speech.task(house.goal)
        self._texts = {one: self._command(one) for one in conceivable(house) if style.idle or one.verb not in IDLE}
        self._meant = {text: command for command, text in self._texts.items()}

    # ---- commands -----------------------------------------------------------------------------------------
    def write(self, command: Command) -> str:
        """The text of a command."""
        return self._texts[command]

    def read(self, text: str) -> Command | None:
        """The command that a text means. None if it is no command, or names something that the house does not have."""
        return read_leniently(text, lambda one: self._meant.get(" ".join(one.lower().split()).rstrip(".")))

    def legal(self, state: State) -> list[str]:
        """The texts of all commands that are possible now."""
        return [self._texts[one] for one in possible(self._house, state) if self._idle or one.verb not in IDLE]

    def _command(self, command: Command) -> str:
        verb, thing, place = command
        say = self._words.command
        if verb == "enter":
            return say("go", place=self._rooms[place])
        if verb == "use":
            return say("use", place=self._words.words["lamp"])
        named = "" if place == NOWHERE else self._places[place]
        if verb == "examine":
            return say("examine", thing=named or self._things[thing])
        return say(verb, thing="" if thing == NOWHERE else self._things[thing], place=named)

    # ---- descriptions -------------------------------------------------------------------------------------
    def show(self, state: State) -> str:
        """The text of an observation: the result of the last act, the task, the agent, and the rooms it may see."""
        text = self._news(state) if self._brief and state.turn else self._whole(state)
        return f"{text} commands: {', '.join(self.legal(state))}." if self._commands else text

    def _news(self, state: State) -> str:
        """The result of the last act, the place or the room where the agent stands, and what it carries."""
        here = self._room(state) if state.at == NOWHERE else self._place(state, state.at)
        held = "nothing" if state.held == NOWHERE else self._thing(state, state.held)
        return f"{self._said(state)} here: {here}. you carry {held}."

    def _room(self, state: State) -> str:
        """`bedroom: bed 1 ?, drawer 1 closed ?`"""
        return f"{self._rooms[state.room]}: {', '.join(self._listed(state, state.room))}"

    def _whole(self, state: State) -> str:
        at = "" if state.at == NOWHERE else f" at {self._places[state.at]}"
        held = "nothing" if state.held == NOWHERE else self._thing(state, state.held)
        rooms = [
            self._tell(state, "listed", f"{name}: {places}.", room=name, places=places)
            for room, name in enumerate(self._rooms)
            for places in [", ".join(self._listed(state, room)) or "?"]
            if self._view != "here" or room == state.room
        ]
        doors = []
        if self._view == "here" and len(self._rooms) > 1:
            doors = [f"doors: {', '.join(name for room, name in enumerate(self._rooms) if room != state.room)}."]
        room = self._rooms[state.room]
        here = self._tell(state, "here", f"you are in {room}{at}. you carry {held}.", room=room, at=at, held=held)
        return " ".join([self._said(state), self._task, here, *rooms, *doors])

    def _goal(self) -> str:
        goal, word = self._house.goal, self._words.words
        kind, place = word[goal.kind], word.get(goal.place, "")
        if goal.name == "look":
            return f"task: look at {kind} under {word['lamp']}."
        if goal.name == "two":
            return f"task: put two {kind}s in {place}."
        state = f"{word[RESULTS[goal.name]]} " if goal.name in RESULTS else ""
        return f"task: put {state}{kind} in {place}."

    def _said(self, state: State) -> str:
        kind, number = state.said
        if kind == "thing":
            marks = [self._words.words[mark] for one, mark in sorted(state.marks) if one == number]
            return f"{self._things[number]} is {' and '.join(marks) or 'nothing special'}."
        if kind == "place":
            return f"{self._places[number]} is {'open' if accessible(self._house, state, number) else 'closed'}."
        return self._tell(state, kind, {"start": "you start.", "nothing": "nothing happens.", "done": "done."}[kind])

    def _tell(self, state: State, kind: str, plain: str, **words: str) -> str:
        """A sentence of the speech, or its plain form without one."""
        return plain if self._speech is None else self._speech.tell(kind, state.turn, **words)

    def _listed(self, state: State, room: Number) -> list[str]:
        """The places of a room with their known contents. Empty for a room that the agent has never entered, unless
        the view is "full"."""
        if self._view != "full" and room not in state.entered:
            return []
        return [self._place(state, number) for number, place in enumerate(self._house.places) if place.room == room]

    def _place(self, state: State, number: Number) -> str:
        """`drawer 1 closed mug 1 pen 2`, `shelf 1 empty`, or `desk 1 ?` if its contents are not known."""
        door = "" if accessible(self._house, state, number) else " closed"
        there = state.at == number and not door
        known = {"full": True, "remembered": number in state.seen, "here": there}[self._view]
        if not known:
            return f"{self._places[number]}{door} ?"
        inside = [self._words.words["lamp"]] if number == self._house.lamp else []
        inside += [self._thing(state, thing) for thing, place in enumerate(state.where) if place == number]
        return f"{self._places[number]}{door} {' '.join(inside) or 'empty'}"

    def _thing(self, state: State, thing: Number) -> str:
        marks = [self._words.words[mark] for one, mark in sorted(state.marks) if one == thing]
        return " ".join([self._things[thing], *marks])
