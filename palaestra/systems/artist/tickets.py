"""Tickets: an environment in which calls of two functions change a booking; everything else must stay as it is.

The environment is deterministic; tasks differ only by their seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import choice, read_choice
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import PositiveInt, register

AGENT = "clerk"
FIELDS: dict[str, tuple[str, ...]] = {
    "day": ("monday", "tuesday", "friday"),
    "seat": ("aisle", "window", "middle"),
    "meal": ("fish", "rice", "salad"),
}
CALLS = (*(f"book {field} {value}" for field, values in FIELDS.items() for value in values),
         *(f"cancel {field}" for field in FIELDS))  # fmt: skip
DONE = "done"
ACTIONS = (*CALLS, DONE)
Booking = tuple[str | None, ...]  # the value of each field, in the order of FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A booking, the wanted booking, and the calls that lead to it, in an order that works."""

    before: Booking
    wanted: Booking
    calls: tuple[str, ...]


@lru_cache(maxsize=4096)
def build(changes: int, seed: int) -> Request:
    """A random booking with `changes` fields to change; a field that is booked must be canceled first."""
    draw = random.Random(seed)
    before: list[str | None] = [draw.choice((None, *values)) for values in FIELDS.values()]
    wanted, calls = list(before), list[str]()
    for place in sorted(draw.sample(range(len(FIELDS)), changes)):
        name = list(FIELDS)[place]
        wanted[place] = draw.choice([value for value in (None, *FIELDS[name]) if value != before[place]])
        calls += [f"cancel {name}"] if before[place] is not None else []
        calls += [f"book {name} {wanted[place]}"] if wanted[place] is not None else []
    return Request(before=tuple(before), wanted=tuple(wanted), calls=tuple(calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. It is frozen, so that a snapshot is the state itself."""

    request: Request
    booking: Booking
    seed: int
    said: str = "start."
    failed: bool = False  # whether the last call failed
    turn: int = 0
    made: tuple[str, ...] = ()  # successful calls
    readable: bool = True

    @property
    def calls_matched(self) -> int:
        """The number of wanted calls that were made."""
        return (Counter(self.made) & Counter(self.request.calls)).total()

    @property
    def fields_matched(self) -> int:
        """The number of fields with the wanted value."""
        return sum(now == wanted for now, wanted in zip(self.booking, self.request.wanted, strict=True))


@register("environment", "tickets")
class Tickets(KeepsState[State]):
    """Book and cancel until the ticket is what was asked for, then say `done`.

    `book seat window` fills a free field, `cancel seat` frees a booked one. A call that cannot be made or cannot be
    read returns a text that begins with `error:`.

    Args:
        changes: fewest and most fields to change, 1 to 3, in equal shares. Higher: more calls must be right.
        max_turns: turns until the episode is cut off. A request takes up to 2 · changes + 1. Usual: 9.

    Reward: 1 for the wanted ticket at `done`, else 0. A step's `info` has `tool_call`, `tool_error` and `executable`,
        and the present values of `state_matched` of `state_total` fields, `calls_matched` of `calls_total` wanted
        calls, and `format` (1 if the episode ended with `done` and every action could be read).

    `vector` is one-hot: the present and the wanted value of each field; and whether the last call failed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset(
        {"state_key", "outcome", "executable", "tool_call", "tool_error", "format"}
        | {"state_matched", "state_total", "calls_matched", "calls_total"}
    )
    actions: tuple[str, ...] = ACTIONS
    action_count: int = len(ACTIONS)
    vector_size: int = sum(2 * (len(values) + 1) for values in FIELDS.values()) + 1

    def __init__(
        self,
        *,
        changes: tuple[Annotated[int, pydantic.Field(ge=1, le=3)], Annotated[int, pydantic.Field(ge=1, le=3)]] = (1, 3),
        max_turns: PositiveInt = 9,
    ) -> None:
        self._changes, self._max_turns = (min(changes), max(changes)), max_turns
        self._params = {"changes": list(self._changes)}

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        values = "; ".join(f"{name} with {', '.join(those)}" for name, those in FIELDS.items())
        return write_manual(
            "You are a clerk who changes a ticket. Every message says what your last call did, what the ticket has, "
            "and what the customer wants it to have. Make calls until both are the same, and leave all else as it is.",
            {
                "book FIELD VALUE": f"fill a field that is free: {values}",
                "cancel FIELD": "free a field that is booked, which is needed before another value can be booked",
                DONE: "end the episode",
            },
            example="book seat window",
            ending="A call that cannot be made or read returns an error and changes nothing. The episode succeeds if "
            f"the ticket is what is wanted when you say `{DONE}`.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` requests; no split asks for what another one asks for."""
        return seeded_tasks("tickets", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The booking, and what it shall become."""
        request = self._request(task)
        return [list(request.before), list(request.wanted)]

    def difficulty(self, task: Task) -> float:
        """Fields that change."""
        return float(self._count(task.seed, task.params.get("changes", self._changes)))

    def _request(self, task: Task) -> Request:
        return build(self._count(task.seed, task.params.get("changes", self._changes)), task.seed)

    def reset(self, task: Task) -> StepResult:
        request = self._request(task)
        self.state = State(request=request, booking=request.before, seed=task.seed)
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        meant = read_choice(actions[AGENT].value, ACTIONS)
        self.state = after = _act(replace(before, turn=before.turn + 1), meant)
        over = meant == DONE
        cut = not over and after.turn >= self._max_turns
        right = over and after.booking == after.request.wanted
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=float(right),
            over=over,
            cut=cut,
            act=_of_act(after, meant, over=over),
            readable=meant is not None,
            info={"success": right},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Sets right the first field that is not as it should be; then is done."""
        state = self.state
        text = DONE
        for name, now, wanted in zip(FIELDS, state.booking, state.request.wanted, strict=True):
            if now != wanted:
                text = f"book {name} {wanted}" if now is None else f"cancel {name}"
                break
        return choice(text, ACTIONS)

    # ---- playing ------------------------------------------------------------------------------------------
    def _count(self, seed: int, changes: Any = None) -> int:
        fewest, most = changes or self._changes
        return fewest + seed // 2 % (most - fewest + 1)  # the last bit of a seed tells its split

    def _observe(self, state: State) -> Observation:
        return Observation(
            text=f"{state.said} has {_spell(state.booking)}. wants {_spell(state.request.wanted)}.",
            vector=_vector(state),
            legal=ACTIONS,
            state_key=f"{state.seed}/{_spell(state.booking)}",
        )


def _act(state: State, meant: str | None) -> State:
    if meant is None:
        return replace(state, said="error: cannot read that.", failed=True, readable=False)
    if meant == DONE:
        return replace(state, failed=False)
    kind, name, *value = meant.split()
    place = list(FIELDS).index(name)
    free = state.booking[place] is None
    if free != (kind == "book"):
        return replace(state, said=f"error: {name} is {'free' if free else 'booked'}.", failed=True)
    booking = (*state.booking[:place], value[0] if value else None, *state.booking[place + 1 :])
    said = f"{name} is {'booked' if value else 'free'}."
    return replace(state, booking=booking, said=said, failed=False, made=(*state.made, meant))


def _of_act(state: State, meant: str | None, *, over: bool) -> dict[str, float]:
    """What the last act was, and how the ticket stands after it."""
    told = {
        "tool_call": meant != DONE,
        "tool_error": state.failed,
        "executable": not state.failed,
        "state_matched": state.fields_matched,
        "state_total": len(FIELDS),
        "calls_matched": state.calls_matched,
        "calls_total": len(state.request.calls),
        "format": over and state.readable,
    }
    return {name: float(value) for name, value in told.items()}


def _spell(booking: Booking) -> str:
    return ", ".join(f"{name} {value or 'free'}" for name, value in zip(FIELDS, booking, strict=True))


def _vector(state: State) -> np.ndarray:
    found = []
    for booking in (state.booking, state.request.wanted):
        for values, value in zip(FIELDS.values(), booking, strict=True):
            found += [float(one == value) for one in (None, *values)]
    return np.array([*found, float(state.failed)], np.float32)
