"""Signals: a referential game. A speaker sees an object and utters symbols, a listener picks it out of several."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

SPEAKER, LISTENER = "speaker", "listener"
AGENTS = (SPEAKER, LISTENER)
Thing = tuple[int, ...]  # the value of each attribute
Several = Annotated[int, pydantic.Field(ge=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one episode is.

    Attributes:
        things: what the listener chooses from, in its order. target: the place of the right one.
        uttered: what the speaker said. heard: what arrived; the same but for noise.
    """

    seed: int
    things: tuple[Thing, ...]
    target: int
    uttered: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()


@register("environment", "signals", source="arXiv 2110.14241, the setting only")
class Signals(KeepsState[State]):
    """Say which of several objects is meant, in symbols that mean nothing at first.

    An object has a value of each attribute. The speaker sees one object and utters `length` symbols, one an act; then
    the listener sees the symbols and several objects in random order, and picks one. Both share the reward.

    Args:
        attributes, values: of objects; there are values ** attributes of them. Higher: more to say. Usual: 3, 4.
        distractors: further objects in front of the listener, all different. Higher: a guess is right more rarely.
            Usual: 3.
        near: distractors differ from the target in one attribute only, so that each attribute has to be said.
        symbols: size of the alphabet, at least attributes · values. Higher: more to choose from. Usual: 12.
        length: symbols of an utterance. With fewer than `attributes` the fixed code cannot say all. Usual: 3.
        noise: probability that a symbol arrives as another one. Usual: 0, or 0.05 as of people.
        code: who is played by a fixed code, in which symbol v + values · k says that attribute k has value v: nobody,
            the "speaker" or the "listener". A partner that a team was not trained with.
        offer: "legal" lists a role's actions as indices, so that network policies take no others; "all" lists none.
        names: observations say who acts. Without, a role must be told from what it sees.

    Action: an index, or its digits as text: of a symbol, or of an object. An index that the role does not have, and a
    text that cannot be read, are symbol 0 or no choice.
    Reward, at the end, to both: 1 for the object that was meant, else 0.
    Info: `team` at each step; `format`, 0 for an index that the role does not have; at the end `success`, and
    `in_code`, the share of symbols that are those of the fixed code.
    Expert: the fixed code; it chooses the object that fits most of what it heard, the first of several.
    """

    agents: tuple[str, ...] = AGENTS
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "team", "format"})

    def __init__(
        self,
        *,
        attributes: PositiveInt = 3,
        values: Several = 4,
        distractors: PositiveInt = 3,
        near: bool = False,
        symbols: PositiveInt = 12,
        length: PositiveInt = 3,
        noise: Fraction = 0.0,
        code: Literal["none", "speaker", "listener"] = "none",
        offer: Literal["legal", "all"] = "legal",
        names: bool = True,
    ) -> None:
        _refuse_impossible(attributes, values, distractors, symbols, near=near)
        self._params = {"attributes": attributes, "values": values, "distractors": distractors, "near": near}
        self._attributes, self._values, self._distractors, self._near = attributes, values, distractors, near
        self._symbols, self._length, self._noise = symbols, length, noise
        self._code, self._offer, self._names = code, offer, names
        self.action_count = max(symbols, distractors + 1)
        self.vector_size = 2 + (distractors + 1) * attributes * values + length * symbols

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games; splits never share a seed."""
        return seeded_tasks("signals", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The things in their order, and which of them is meant."""
        return as_json(self._drawn(task))

    def _drawn(self, task: Task) -> tuple[tuple[tuple[int, ...], ...], int]:
        draw = random.Random(derive(task.seed, "signals"))
        target = tuple(draw.randrange(self._values) for _ in range(self._attributes))
        things = [target, *self._others(target, draw)]
        draw.shuffle(things)
        return tuple(things), things.index(target)

    def reset(self, task: Task) -> StepResult:
        things, target = self._drawn(task)
        self.state = State(seed=task.seed, things=things, target=target)
        while self._code == SPEAKER and len(self.state.uttered) < self._length:
            self.state = self._said(self.state, self._coded(self.state))
        return several({self._acting: self._observe(self.state)})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state, agent = self.state, self._acting
        meant = _read(actions[agent].value)
        count = self._symbols if agent == SPEAKER else len(state.things)
        fits = meant is not None and meant < count
        info = act_info(agent, {"team": "both", "format": float(fits)}, readable=meant is not None)
        if agent == SPEAKER:
            state = self.state = self._said(state, meant if meant is not None and fits else 0)
            if len(state.uttered) < self._length:
                return several({SPEAKER: self._observe(state)}, info=info)
            if self._code != LISTENER:
                return several({LISTENER: self._observe(state)}, info=info)
            meant = self._decoded(state)
        return self._over(state, won=meant == state.target, info=info)

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The fixed code."""
        state = self.state
        index = self._coded(state) if self._acting == SPEAKER else self._decoded(state)
        return Action(text=str(index), value=index)

    # ---- playing ------------------------------------------------------------------------------------------
    @property
    def _acting(self) -> str:
        return SPEAKER if len(self.state.uttered) < self._length else LISTENER

    def _others(self, target: Thing, draw: random.Random) -> list[Thing]:
        """Distractors, all different."""
        found: list[Thing] = []
        while len(found) < self._distractors:
            other = [draw.randrange(self._values) for _ in target]
            if self._near:
                place = draw.randrange(len(target))
                other = [*target[:place], other[place], *target[place + 1 :]]
            if tuple(other) != target and tuple(other) not in found:
                found.append(tuple(other))
        return found

    def _said(self, state: State, symbol: int) -> State:
        draw = random.Random(derive(state.seed, "noise", len(state.uttered)))
        arrived = symbol
        if draw.random() < self._noise:
            arrived = draw.choice([other for other in range(self._symbols) if other != symbol])
        return replace(state, uttered=(*state.uttered, symbol), heard=(*state.heard, arrived))

    def _coded(self, state: State) -> int:
        """The next symbol of the fixed code: attribute after attribute, from the first one again after the last."""
        attribute = len(state.uttered) % self._attributes
        return self._values * attribute + state.things[state.target][attribute]

    def _decoded(self, state: State) -> int:
        def fit(thing: Thing) -> int:
            return sum(symbol == self._values * k + value for symbol in state.heard for k, value in enumerate(thing))

        return max(range(len(state.things)), key=lambda place: (fit(state.things[place]), -place))

    def _over(self, state: State, *, won: bool, info: dict[str, Any]) -> StepResult:
        code = [self._coded(replace(state, uttered=state.uttered[:place])) for place in range(self._length)]
        same = sum(one == other for one, other in zip(code, state.uttered, strict=True)) / self._length
        acted = tuple(agent for agent in AGENTS if agent != self._code)
        return several(
            {},
            rewards=dict.fromkeys(acted, float(won)),
            over=acted,
            info={**info, "success": won, "in_code": same},
        )

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        agent = self._acting
        speaks = agent == SPEAKER
        things = (state.things[state.target],) if speaks else state.things
        heard = state.uttered if speaks else state.heard
        told = " ".join(map(str, heard)) or "nothing"
        words = [f"{agent}."] if self._names else []
        words += [f"{'said' if speaks else 'heard'} {told}."]
        words += [f"object {_written(things[0])}."] if speaks else _listed(things)
        text = " ".join(words)
        return Observation(
            text=text,
            vector=self._vector(agent, things, heard),
            legal=list(range(self._symbols if speaks else len(things))) if self._offer == "legal" else None,
            state_key=f"{agent}/{text}",
        )

    def _vector(self, agent: str, things: tuple[Thing, ...], heard: tuple[int, ...]) -> np.ndarray:
        """Who acts; objects one after another, the speaker's in the first place; symbols; all one-hot."""
        who = np.zeros(2, np.float32)
        who[AGENTS.index(agent)] = float(self._names)
        seen = np.zeros((self._distractors + 1, self._attributes, self._values), np.float32)
        for place, thing in enumerate(things):
            seen[place, np.arange(self._attributes), list(thing)] = 1
        said = np.zeros((self._length, self._symbols), np.float32)
        said[np.arange(len(heard)), list(heard)] = 1
        return np.concatenate([who, seen.ravel(), said.ravel()])


def _read(value: Any) -> int | None:
    """The index that is meant; None if it cannot be read."""
    if isinstance(value, str) and value.strip().isdecimal() and value.strip().isascii() and len(value.strip()) < 6:
        return int(value)
    return int(value) if isinstance(value, int | np.integer) and value >= 0 else None


def _written(thing: Thing) -> str:
    """`a0 b3 c1`: the attributes are letters."""
    return " ".join(f"{chr(ord('a') + k)}{value}" for k, value in enumerate(thing))


def _listed(things: tuple[Thing, ...]) -> list[str]:
    return [f"object {place} {_written(thing)}." for place, thing in enumerate(things)]


def _refuse_impossible(attributes: int, values: int, distractors: int, symbols: int, *, near: bool) -> None:
    refuse = Refusals("environment: signals")
    refuse.when(
        attributes > 26, f"`attributes` is {attributes}, and they are written as letters.", "Set it to 26 or less."
    )
    refuse.when(
        symbols < attributes * values,
        f"the fixed code has a symbol for each of {attributes} · {values} values, and `symbols` is {symbols}.",
        f"Set `symbols: {attributes * values}` or more.",
    )
    there = attributes * (values - 1) if near else values**attributes - 1
    refuse.when(
        distractors > there,
        f"{distractors} different distractors were asked for, and there are {there}.",
        "Lower `distractors`, or raise `attributes` or `values`.",
    )
