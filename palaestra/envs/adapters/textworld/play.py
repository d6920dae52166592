"""Players of a TextWorld game: `LogicPlayer` plays its rules, `CompiledPlayer` plays it in the Z-machine interpreter.

`pddl` has a player of other games. All have the same members:
    feedback   the effect of the last command, as text
    commands   admissible commands in alphabetical order, as the keys of a mapping
    progress   what `Progress` tells
    step       carry out a command; returns whether the game understood it
    copy       an independent player in the same state
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.envs.adapters.textworld.games import package

NOT_UNDERSTOOD = "you cannot do that"


class Progress:
    """How far a game of TextWorld is, as its GameProgression `state` tells.

    Members: `completed`, whether it is won; `failed`, whether it is lost; `score`, in [0, 1]; `facts`, what is true
    now, one text for each, in order; `plan`, the next command of a way to win, or None.
    """

    def __init__(self, game: Any, state: Any) -> None:
        self.game, self.state = game, state

    @property
    def completed(self) -> bool:
        return bool(self.state.completed)

    @property
    def failed(self) -> bool:
        return bool(self.state.failed)

    @property
    def score(self) -> float:
        return float(self.state.score / max(self.game.max_score, 1))

    def facts(self) -> list[str]:
        return sorted(
            "\t".join((fact.name, *(variable.name for variable in fact.arguments))) for fact in self.state.state.facts
        )

    def plan(self) -> str | None:
        solution = self.state.winning_policy
        return command_of(self.game, solution[0]) if solution else None


class LogicPlayer:
    """Plays the rules of the game, and describes the situation by its facts. It needs no compiled game."""

    def __init__(self, game: Any, state: Any = None) -> None:
        from textworld.generator.game import GameProgression

        self.game = game
        self.state = state or GameProgression(game)
        self.feedback = situation(game, self.state)
        self.commands = _commands(game, self.state)

    @property
    def progress(self) -> Progress:
        return Progress(self.game, self.state)

    def step(self, command: str) -> bool:
        action = self.commands.get(command)
        if action is None:
            self.feedback = f"{NOT_UNDERSTOOD}\n{situation(self.game, self.state)}"
            return False
        self.state.update(action)
        self.feedback = situation(self.game, self.state)
        self.commands = _commands(self.game, self.state)
        return True

    def copy(self) -> LogicPlayer:
        return LogicPlayer(self.game, self.state.copy())

    def close(self) -> None:
        """Nothing to close."""


class CompiledPlayer:
    """Plays the compiled game in the Z-machine interpreter, with the game's own prose."""

    def __init__(self, game: Any, path: Path) -> None:
        textworld = package()
        wanted = textworld.EnvInfos(feedback=True, moves=True, policy_commands=True)
        self.game, self.path = game, path
        self.running = textworld.start(str(path), wanted)
        now = self.running.reset()
        self.state = now["_game_progression"]
        self.feedback = clean(now["feedback"])
        self.commands = _commands(game, self.state)
        self.moves, self.said = 0, list[str]()

    @property
    def progress(self) -> Progress:
        return Progress(self.game, self.state)

    def step(self, command: str) -> bool:
        # The interpreter gets only commands with a verb of this game: it would also obey `quit` and `restart`.
        if command.partition(" ")[0] not in self.game.verbs:
            self.feedback = NOT_UNDERSTOOD
            return False
        now, _, _ = self.running.step(command)
        self.said.append(command)
        self.feedback = clean(now["feedback"]) or NOT_UNDERSTOOD
        self.commands = _commands(self.game, self.state)
        before, self.moves = self.moves, int(now["moves"])  # counts the actions that the package recognized
        return self.moves > before

    def copy(self) -> CompiledPlayer:
        """An independent player in the same state.

        It plays all commands again, in a tenth of the time that copying the interpreter takes.
        """
        copied = CompiledPlayer(self.game, self.path)
        for command in self.said:
            copied.step(command)
        copied.feedback = self.feedback
        return copied

    def close(self) -> None:
        self.running.close()


def _commands(game: Any, state: Any) -> dict[str, Any]:
    """Admissible commands in alphabetical order, each with the first of its actions."""
    found: dict[str, Any] = {}
    for action in state.valid_actions:
        found.setdefault(command_of(game, action), action)
    return dict(sorted(found.items()))


def command_of(game: Any, action: Any) -> str:
    """The command that stands for an action of the package, in lower case."""
    names = {variable.name: game.infos[variable.name].name for variable in action.variables}
    return str(action.format_command(names)).lower()


# ---- the situation from facts -----------------------------------------------------------------------------
def situation(game: Any, state: Any) -> str:
    """What the player sees and carries, in four lines: room, exits, objects here, objects carried."""
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for fact in state.state.facts:
        facts[fact.name].append(tuple(variable.name for variable in fact.arguments))
    names = {key: (info.name or key).lower() for key, info in game.infos.items()}
    room = next(place for thing, place in facts["at"] if thing == "P")
    lines = {
        "room": names[room],
        "exits": _listed(_exits(facts, names, room)),
        "here": _listed(_thing(facts, names, key) for key, place in facts["at"] if place == room and key != "P"),
        "carrying": _listed(names[key] for key, place in facts["in"] if place == "I"),
    }
    return "\n".join(f"{title}: {text}" for title, text in lines.items())


def _exits(facts: Mapping[str, list[tuple[str, ...]]], names: Mapping[str, str], room: str) -> list[str]:
    doors = {beyond: door for start, door, beyond in facts["link"] if start == room}
    found = []
    for direction in ("north", "south", "east", "west"):
        for beyond, start in facts[f"{direction}_of"]:
            if start == room:
                door = doors.get(beyond)
                found.append(direction if door is None else f"{direction} ({_door(facts, names, door)})")
    return found


def _door(facts: Mapping[str, list[tuple[str, ...]]], names: Mapping[str, str], door: str) -> str:
    return f"{_condition(facts, door)} {names[door]}".strip()


def _thing(facts: Mapping[str, list[tuple[str, ...]]], names: Mapping[str, str], key: str) -> str:
    """An object with its condition, and with what lies on it or in it unless it is closed or locked."""
    condition = _condition(facts, key)
    inside = [names[thing] for relation in ("on", "in") for thing, place in facts[relation] if place == key]
    if condition in ("closed", "locked"):
        inside = []
    details = ", ".join(filter(None, [condition, f"with {', '.join(sorted(inside))}" if inside else ""]))
    return f"{names[key]} ({details})" if details else names[key]


def _condition(facts: Mapping[str, list[tuple[str, ...]]], key: str) -> str:
    return next((word for word in ("locked", "closed", "open") if (key,) in facts[word]), "")


def _listed(texts: Any) -> str:
    return ", ".join(sorted(texts)) or "nothing"


# ---- the interpreter's prose ------------------------------------------------------------------------------
def clean(feedback: str) -> str:
    """Feedback without the banner, scores and the interpreter's questions, and without empty lines."""
    if "$$$$" in feedback:  # the banner; after it come the objective and the first room with its title
        feedback = feedback[max(feedback.find("-="), 0) :]
    feedback = feedback.partition("*** ")[0]
    kept = [" ".join(line.split()) for line in feedback.splitlines()]
    return "\n".join(line for line in kept if line and not re.match(r"Your score has|>|\[Your score", line))
