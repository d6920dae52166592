"""Signals: a referential game. A speaker describes an object in symbols, and a listener picks it out of several."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

SPEAKER, LISTENER = "speaker", "listener"
AGENTS = (SPEAKER, LISTENER)
Thing = tuple[int, ...]  # an object: the value of each attribute
Several = Annotated[int, pydantic.Field(ge=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode.

    Attributes:
        things: the objects that the listener chooses from, in order. target: index of the right one.
        uttered: the speaker's symbols. heard: the symbols that arrived, which differ from `uttered` by noise only.
    """

    seed: int
    things: tuple[Thing, ...]
    target: int
    uttered: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()


@register("environment", "signals", source="arXiv 2110.14241, the setting only")
class Signals(KeepsState[State]):
    """Describe one of several objects in symbols that have no meaning at first.

    An object has a value for each attribute. The speaker sees one object and utters `length` symbols, one in each act.
    Then the listener sees the symbols and several objects in random order, and picks one. Both get the same reward.

    Args:
        attributes, values: number of attributes, and of values of each. Higher: more to say. Usual: 3, 4.
        distractors: wrong objects that the listener sees, all different. Higher: a guess is right less often. Usual: 3.
        near: True: each distractor differs from the target in one attribute only, so all attributes must be told.
        symbols: size of the alphabet, at least attributes · values. Higher: more to choose from. Usual: 12.
        length: symbols of an utterance. With fewer than `attributes`, the fixed code cannot tell all. Usual: 3.
        noise: probability that a symbol arrives as another one. Usual: 0, or 0.05 for a noise like that of people.
        code: the role that a fixed code plays: "none", "speaker" or "listener". In this code symbol v + values · k says
            that attribute k has value v. It is a partner that a team was not trained with.
        offer: "legal": observations list the role's actions as indices, and network policies take no others. "all":
            they list none.
        names: observations say which role acts. False: a policy must infer its role from what it sees.

    Action: an index of a symbol or of an object, as a number or as text. An index that the role does not have, or a
    text that cannot be read, counts as symbol 0 from the speaker and as a wrong choice from the listener.
    Reward: at the end, 1 to both for the right object, else 0.
    Info: `team` at each step; `format`, 0 for an index that the role does not have and for an unreadable text; at the
    end `success` and `in_code`, the share of symbols that the fixed code would have uttered, too.
    Expert: the fixed code. As listener it picks the object that fits most of the symbols, the first of equals.
    """

    agents: tuple[str, ...] = AGENTS
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
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

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        speaks = agent == "speaker"
        return write_manual(
            f"You see an object. In each turn utter one symbol, a number from 0 to {self._symbols - 1}, so that the "
            "listener can tell your object from others. The symbols have no meaning but the one that both of you find."
            if speaks
            else "You hear symbols, which are numbers, and see several objects. Answer with the number of the "
            "object that the speaker means.",
            example="2" if speaks else "1",
            ending="The episode succeeds if the listener picks the right object.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games. Splits share no seed."""
        return seeded_tasks("signals", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The objects in their order, and which of them is the target."""
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
        """The act that the fixed code has here."""
        state = self.state
        index = self._coded(state) if self._acting == SPEAKER else self._decoded(state)
        return Action(text=str(index), value=index)

    # ---- playing ------------------------------------------------------------------------------------------
    @property
    def _acting(self) -> str:
        return SPEAKER if len(self.state.uttered) < self._length else LISTENER

    def _others(self, target: Thing, draw: random.Random) -> list[Thing]:
        """The distractors, all different from each other and from the target."""
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
        """The next symbol of the fixed code. It tells one attribute after another, then begins with the first again."""
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
        """One-hot: who acts; the objects in order (for the speaker, the target alone); the symbols so far."""
        who = np.zeros(2, np.float32)
        who[AGENTS.index(agent)] = float(self._names)
        seen = np.zeros((self._distractors + 1, self._attributes, self._values), np.float32)
        for place, thing in enumerate(things):
            seen[place, np.arange(self._attributes), list(thing)] = 1
        said = np.zeros((self._length, self._symbols), np.float32)
        said[np.arange(len(heard)), list(heard)] = 1
        return np.concatenate([who, seen.ravel(), said.ravel()])


def _read(value: Any) -> int | None:
    """The index that a value means, or None if it cannot be read."""
    if isinstance(value, str) and value.strip().isdecimal() and value.strip().isascii() and len(value.strip()) < 6:
        return int(value)
    return int(value) if isinstance(value, int | np.integer) and value >= 0 else None


def _written(thing: Thing) -> str:
    """An object as text, with letters for the attributes: `a0 b3 c1`."""
    return " ".join(f"{chr(ord('a') + k)}{value}" for k, value in enumerate(thing))


def _listed(things: tuple[Thing, ...]) -> list[str]:
    return [f"object {place} {_written(thing)}." for place, thing in enumerate(things)]


def _refuse_impossible(attributes: int, values: int, distractors: int, symbols: int, *, near: bool) -> None:
    refuse = Refusals("environment: signals")
    refuse.when(
        attributes > 26, f"`attributes` is {attributes}, and there are 26 letters for them.", "Set it to 26 or less."
    )
    refuse.when(
        symbols < attributes * values,
        f"`symbols` is {symbols}, and the fixed code needs one for each of {attributes} · {values} values.",
        f"Set `symbols: {attributes * values}` or more.",
    )
    there = attributes * (values - 1) if near else values**attributes - 1
    refuse.when(
        distractors > there,
        f"`distractors` is {distractors}, and there are at most {there} different ones.",
        "Lower `distractors`, or raise `attributes` or `values`.",
    )
