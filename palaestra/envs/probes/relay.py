"""Relay: a main agent answers a question of two halves. It calls a sub-agent, which has the search tool, for each half.

Every act tells which call it belongs to, for credit assignment in teams.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice, read_index
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, NonNegative, PositiveInt, register

MAIN, SUB = "main", "sub"
OBJECTS = ("lamp", "box", "cup", "door", "ring", "coat", "drum", "sail")
PLACES = ("top", "base", "rim", "back")
COLORS = ("red", "blue", "green", "gold", "black", "white")
SPARE = 2  # acts of the main agent besides its calls: the answer, and one that may fail
Key = int  # number of an object's place
Color = int


@dataclass(slots=True)
class Call:
    """One call of the sub-agent. `parent` is the turn in which the main agent made it."""

    key: Key
    parent: int
    acts: int = 0
    found: tuple[Key, Color] | None = None


@dataclass(slots=True)
class State:
    """The state of one episode. `notes` has the reported colors; `turn` counts the acts of both agents."""

    world: tuple[Color, ...]
    question: tuple[Key, Key]
    seed: int
    notes: dict[Key, Color] = field(default_factory=dict)
    call: Call | None = None
    calls: int = 0
    own: int = 0  # acts of the main agent
    turn: int = 0

    @property
    def agent(self) -> str:
        """The agent that acts next."""
        return MAIN if self.call is None else SUB


@register("environment", "relay")
class Relay(KeepsState[State]):
    """Answer a question of two halves by calling a sub-agent, which has the search tool.

    `question: top of lamp and rim of cup.` The agent `main` calls with `ask top of lamp`. Then the agent `sub` reads
    `find top of lamp.`, can `search top of lamp`, and ends the call with `report red`. When the main agent knows both
    halves, it answers in their order: `answer red blue`. Colors differ from task to task.

    Args:
        objects, places: number of objects, 2–8, and of places of each, 1–4. Higher: more to choose from. Usual: 4, 2.
        colors: number of colors, 2–6. Higher: a guess is right less often. Usual: 4.
        calls: most calls of an episode; 2 are needed. Higher: failed calls can be made again. Usual: 3.
        call_turns: acts of the sub-agent in one call; 2 are needed. A call without a report by then has failed.
        noise: probability that a search finds a wrong color. Usual: 0.
        offer: "legal": observations list the role's actions as indices, and network policies take no others. "all":
            they list none, so a policy must learn the actions of its role, too.
        main_penalty, sub_penalty: subtracted from an agent's reward for each act that its role cannot do, ≥ 0. An act
            that cannot be read is one of these.
        shared: True: the sub-agent gets the reward for the answer, too.

    Reward: 1 to `main` for the right answer, else 0. An act that the role cannot do, or that cannot be read, changes
    nothing but takes a turn. Only one that cannot be read is marked invalid.

    The `info` of a step has `invocation`, which is 0 for `main`, else the number of the call; `parent`, the turn of the
    act that made the call; `format`, which is 0 for an act that the role cannot do and for the last act of a call
    without a report; `stratum`, the number of calls so far as a text; and, at the end of a call, `expert`, which is 1
    if the report was true. The last step has `calls`, the number of calls.
    """

    agents: tuple[str, ...] = (MAIN, SUB)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "format", "expert", "stratum"})

    def __init__(
        self,
        *,
        objects: Annotated[int, pydantic.Field(ge=2, le=len(OBJECTS))] = 4,
        places: Annotated[int, pydantic.Field(ge=1, le=len(PLACES))] = 2,
        colors: Annotated[int, pydantic.Field(ge=2, le=len(COLORS))] = 4,
        calls: PositiveInt = 3,
        call_turns: PositiveInt = 3,
        noise: Fraction = 0.0,
        offer: Literal["legal", "all"] = "legal",
        main_penalty: NonNegative = 0.0,
        sub_penalty: NonNegative = 0.0,
        shared: bool = False,
    ) -> None:
        self._params = {"objects": objects, "places": places, "colors": colors, "noise": noise}
        self._objects, self._places, self._colors, self._noise = objects, places, colors, noise
        self._calls, self._call_turns, self._offer, self._shared = calls, call_turns, offer, shared
        self._penalty = {MAIN: main_penalty, SUB: sub_penalty}
        self._keys = [f"{place} of {thing}" for thing in OBJECTS[:objects] for place in PLACES[:places]]
        hues = COLORS[:colors]
        self.actions: tuple[str, ...] = (
            *(f"ask {key}" for key in self._keys),
            *(f"answer {one} {two}" for one, two in itertools.product(hues, hues)),
            *(f"search {key}" for key in self._keys),
            *(f"report {hue}" for hue in hues),
        )
        self.action_count = len(self.actions)
        self.vector_size = 2 + 4 * (objects + places) + 3 * colors + calls + 1

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        ask = agent == MAIN
        return write_manual(
            "You answer a question of two halves, such as `top of lamp and rim of cup`: the color of each. You cannot "
            "search. Ask your assistant for each half, one after the other."
            if ask
            else "You are asked for a color, such as `find top of lamp`. Search it, then report the color.",
            {"ask THING of THING": "ask for one half", "answer COLOR COLOR": "answer, in the order of the question"}
            if ask
            else {"search THING of THING": "find the color", "report COLOR": "tell it, which ends your part"},
            example="ask top of lamp" if ask else "search top of lamp",
            ending="The episode succeeds if both colors are right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` questions. Splits share no seed."""
        return seeded_tasks("relay", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The color of each place, and the two places that are asked for."""
        return as_json((self._keys, *self._drawn(task)))

    def _drawn(self, task: Task) -> tuple[tuple[int, ...], tuple[int, int]]:
        draw = random.Random(task.seed)
        world = tuple(draw.randrange(self._colors) for _ in self._keys)
        first, second = draw.sample(range(len(self._keys)), 2)
        return world, (first, second)

    def reset(self, task: Task) -> StepResult:
        self.state = State(*self._drawn(task), task.seed)
        return several({MAIN: self._observe(self.state, "")})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self.state
        agent = state.agent
        meant = read_index(actions[agent].value, self.actions)
        fits = meant is not None and meant in self._possible(state)
        told = {"invocation": state.calls if state.call else 0, "format": float(fits)}
        if state.call is not None:
            told["parent"] = state.call.parent
        info = act_info(agent, told, readable=meant is not None)
        rewards = {} if fits else {agent: -self._penalty[agent]}
        words = self.actions[meant].split() if meant is not None and fits else []
        answered: bool | None = None
        if state.call is None:
            answered = self._main_acts(state, words)
        else:
            self._sub_acts(state, state.call, words, info)
        state.turn += 1
        info["stratum"] = str(state.calls)
        said = "" if fits else "not understood. " if meant is None else "not possible. "
        if answered is None and (state.call is not None or state.own < self._calls + SPARE):
            return several({state.agent: self._observe(state, said)}, rewards=rewards, info=info)
        won = bool(answered)
        for one in (MAIN, SUB) if self._shared else (MAIN,):
            rewards[one] = rewards.get(one, 0.0) + float(won)
        info |= {"success": won, "calls": state.calls}
        return several({}, rewards=rewards, over=self.agents, info=info)

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Ask for each half, search it, report the result, and answer as reported."""
        state = self.state
        if state.call is not None:
            key, found = state.call.key, state.call.found
            searched = found is not None and found[0] == key
            text = f"report {COLORS[found[1]]}" if found and searched else f"search {self._keys[key]}"
            return choice(text, self.actions)
        unknown = [key for key in state.question if key not in state.notes]
        if unknown and state.calls < self._calls:
            return choice(f"ask {self._keys[unknown[0]]}", self.actions)
        answer = " ".join(COLORS[state.notes.get(key, 0)] for key in state.question)
        return choice(f"answer {answer}", self.actions)

    # ---- playing ------------------------------------------------------------------------------------------

    def _possible(self, state: State) -> range:
        """The indices of the actions that the acting role can do now."""
        keys, split = len(self._keys), len(self._keys) + self._colors**2
        if state.call is not None:
            return range(split, len(self.actions))
        return range(0 if state.calls < self._calls else keys, split)

    def _main_acts(self, state: State, words: list[str]) -> bool | None:
        """Call or answer. Returns whether the answer is right, or None without an answer."""
        state.own += 1
        if words[:1] == ["ask"]:
            state.calls += 1
            state.call = Call(self._keys.index(" ".join(words[1:])), state.turn)
        if words[:1] == ["answer"]:
            return [COLORS.index(word) for word in words[1:]] == [state.world[key] for key in state.question]
        return None

    def _sub_acts(self, state: State, call: Call, words: list[str], info: dict[str, Any]) -> None:
        """Search or report. At the end of the call, `info` gets whether the report was true."""
        call.acts += 1
        if words[:1] == ["search"]:
            key = self._keys.index(" ".join(words[1:]))
            call.found = (key, self._search(state, key))
        reported = words[:1] == ["report"]
        if reported:
            state.notes[call.key] = COLORS.index(words[1])
        if reported or call.acts >= self._call_turns:
            true = reported and state.notes[call.key] == state.world[call.key]
            info["expert"] = {SUB: float(true)}
            info["format"] = {SUB: info["format"][SUB] * float(reported)}
            state.call = None

    def _search(self, state: State, key: Key) -> Color:
        draw = random.Random(derive(state.seed, "search", state.turn))
        if draw.random() >= self._noise:
            return state.world[key]
        return draw.choice([color for color in range(self._colors) if color != state.world[key]])

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State, said: str) -> Observation:
        text = self._describe(state)
        return Observation(
            text=f"{said}{text}",
            vector=self._vector(state),
            legal=list(self._possible(state)) if self._offer == "legal" else None,
            state_key=f"{state.agent}/{text}",
        )

    def _describe(self, state: State) -> str:
        """What the acting agent reads: `question: top of lamp and rim of cup. 2 calls left.` or `find top of lamp.`"""
        call = state.call
        if call is not None:
            found = f" found: {self._keys[call.found[0]]} is {COLORS[call.found[1]]}." if call.found else ""
            return f"find {self._keys[call.key]}.{found} {self._call_turns - call.acts} turns left."
        asked = " and ".join(self._keys[key] for key in state.question)
        notes = "".join(
            f" {self._keys[key]} is {COLORS[state.notes[key]]}." for key in state.question if key in state.notes
        )
        return f"question: {asked}.{notes} {self._calls - state.calls} calls left."

    def _vector(self, state: State) -> np.ndarray:
        """One-hot: role; for `main` both halves, their reported colors, calls made; for `sub` its call and result."""
        call, keys = state.call, self._objects + self._places
        parts = [np.array([call is None, call is not None], np.float32)]
        for key in state.question:
            parts += [
                self._spell(key if call is None else None),
                _one(state.notes.get(key), self._colors, call is None),
            ]
        parts.append(_one(state.calls, self._calls + 1, call is None))
        found = call.found if call is not None else None
        parts += [self._spell(call.key if call is not None else None), self._spell(found[0] if found else None)]
        parts.append(_one(found[1] if found else None, self._colors))
        vector = np.concatenate(parts).astype(np.float32)
        assert len(vector) == 2 + 4 * keys + 3 * self._colors + self._calls + 1
        return vector

    def _spell(self, key: Key | None) -> np.ndarray:
        thing, place = divmod(key, self._places) if key is not None else (None, None)
        return np.concatenate([_one(thing, self._objects), _one(place, self._places)])


def _one(place: int | None, size: int, shown: bool = True) -> np.ndarray:
    found = np.zeros(size, np.float32)
    if place is not None and shown:
        found[place] = 1
    return found
