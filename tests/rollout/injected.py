"""A world whose `step` breaks its contract in a way that the task names, and the list of these ways.

A fault is a function of the world and of the step's good result. It raises, or returns the result to give instead. The
task's `params["fault"]` names it, so that one run can play all of them beside good episodes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.testing import EchoEnvironment

Fault = Callable[["Faulty", StepResult], Any]
ENVIRONMENT, FINE, REPLACED, TOOL = "environment", "fine", "replaced", "tool"  # what becomes of an episode
BAD = "bad"  # key of a task's params
AGENT = "player"


class Faulty(EchoEnvironment):
    """Echo with two turns. In the first step, or in `reset`, the fault of the task happens."""

    def __init__(self, *, agents: tuple[str, ...] = (AGENT,)) -> None:
        super().__init__(turns=2, agents=agents)

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """Tasks of which every fourth has a fault, each a different one."""
        names = list(FAULTS)
        made = super().tasks(split, n, seed)
        if split != "train":
            return made
        return [
            dataclasses.replace(task, params={BAD: names[task.seed // 2 % len(names)]}) if place % 4 == 0 else task
            for place, task in enumerate(made)
        ]

    def reset(self, task: Task) -> StepResult:
        result = super().reset(task)
        name = str(task.params.get(BAD, ""))
        return FAULTS[name][1](self, result) if name.startswith("reset ") else result

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        result = super().step(actions)
        assert self._task is not None
        name = str(self._task.params.get(BAD, ""))
        if self._turn > 1 or not name or name.startswith(("reset ", "close ")):
            return result
        return FAULTS[name][1](self, result)

    def close(self) -> None:
        name = str(self._task.params.get(BAD, "")) if self._task is not None else ""
        if name.startswith("close "):
            FAULTS[name][1](self, StepResult(observations={}))


# ---- errors -----------------------------------------------------------------------------------------------
class OwnBaseError(BaseException):
    """Not an Exception."""


class Mute(Exception):
    """Has no message that can be read."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Leaving(Exception):
    """Its message ends the program."""

    def __str__(self) -> str:
        raise SystemExit(0)


class Bound(Exception):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__("bound")
        self.lock = threading.Lock()


class Picky(Exception):
    """Can be sent, and not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def _endless() -> None:
    _endless()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("wrong"),
    "exit 0": lambda: SystemExit(0),
    "exit 3": lambda: SystemExit(3),
    "exit with a text": lambda: SystemExit("bye"),
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "an error that is no Exception": lambda: OwnBaseError("own"),
    "StopIteration": lambda: StopIteration("over"),
    "StopAsyncIteration": lambda: StopAsyncIteration("over"),
    "TimeoutError": lambda: TimeoutError("late"),
    "MemoryError": MemoryError,
    "a group": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "a group with exit": lambda: BaseExceptionGroup("two", [SystemExit(0), OwnBaseError("b")]),
    "no message": Mute,
    "a message that exits": Leaving,
    "cannot be sent": Bound,
    "cannot be made again": lambda: Picky(1, 2),
    "half a character": lambda: ValueError("a\ud800b"),
    "an escape": lambda: ValueError("\x1b[2J\x1b]0;title\x07"),
    "a long message": lambda: ValueError("x" * 5_000_000),
    "broken pipe": lambda: BrokenPipeError(32, "pipe"),
    "end of file": lambda: EOFError("no more"),
    "ContractError": lambda: ContractError(where="here", what="the contract."),
}


def _raise(make: Callable[[], BaseException]) -> Fault:
    def fault(world: Faulty, result: StepResult) -> Any:
        raise make()

    return fault


# ---- values -----------------------------------------------------------------------------------------------
class Odd:
    """An object."""


class Refusing(Mapping[str, Any]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise OwnBaseError("no")

    def __iter__(self) -> Iterator[str]:
        raise SystemExit(0)

    def __len__(self) -> int:
        return 1


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Place:
    name: str
    size: int


def _cycle() -> Any:
    circle: list[Any] = []
    circle.append({"again": circle})
    return circle


def _deep() -> Any:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    return deep


def _laughs() -> Any:
    value: Any = ["ha"] * 10
    for _ in range(12):
        value = [value] * 10
    return value


INFO: dict[str, tuple[str, Callable[[], Any]]] = {
    "an object": (REPLACED, Odd),
    "a class": (REPLACED, lambda: Odd),
    "a function": (REPLACED, lambda: lambda: 0),
    "a generator": (REPLACED, lambda: (one for one in "ab")),
    "a lock": (REPLACED, threading.Lock),
    "a socket": (REPLACED, lambda: socket.socket),
    "a cycle": (REPLACED, _cycle),
    "a deep list": (REPLACED, _deep),
    "a list of billions": (REPLACED, _laughs),
    "a mapping that refuses": (REPLACED, lambda: [Refusing()]),
    "an array of objects": (REPLACED, lambda: np.array([Odd(), None], object)),
    "a complex number": (REPLACED, lambda: 1j),
    "bytes": (REPLACED, lambda: b"\xff\x00"),
    "a number of 5000 digits": (REPLACED, lambda: 10**5000),
    "a key of 5,000 digits": (REPLACED, lambda: {10**5000: 1}),
    "keys that become one": (REPLACED, lambda: {1: "a", "1": "b"}),
    "a key that is an object": (REPLACED, lambda: {Odd(): "a"}),
    "half a character": (REPLACED, lambda: "a\ud800b"),
    "NUL": (REPLACED, lambda: ["a\x00b"]),
    "half a character in a key": (REPLACED, lambda: {"\udfff": 1}),
    "a long text": (REPLACED, lambda: "x" * 10_000_000),
    "mixed keys": (FINE, lambda: {1: "a", None: "b", "c": 2, (1, 2): 3, 0.5: 4}),
    "a set": (FINE, lambda: {3, "a", None}),
    "a tensor": (FINE, lambda: torch.arange(6).reshape(2, 3)),
    "an array": (FINE, lambda: np.arange(6.0).reshape(2, 3)),
    "a path": (FINE, lambda: PurePosixPath("/a/b")),
    "an enumeration": (FINE, lambda: Color.RED),
    "a dataclass": (FINE, lambda: Place("hall", 3)),
    "a date of numpy": (FINE, lambda: np.array(["2020-01-01"], "datetime64[D]")),
    "other characters": (FINE, lambda: "é \u202e \U0001f600 \u2028 \u0085 \r\n <b>&amp;</b>"),
    "NaN in a list": (FINE, lambda: [float("nan")]),
    "None": (FINE, lambda: None),
    "NaN": (ENVIRONMENT, lambda: float("nan")),
    "infinity": (ENVIRONMENT, lambda: np.float32("inf")),
    "1e308": (ENVIRONMENT, lambda: 1e308),
    "NaN of an agent": (ENVIRONMENT, lambda: {AGENT: float("nan")}),
    "1e300 of an agent": (ENVIRONMENT, lambda: {AGENT: 1e300}),
    "10**60 of an agent": (ENVIRONMENT, lambda: {AGENT: 10**60}),
}
NAMED_INFO: dict[str, tuple[str, Any]] = {
    "success that is no number": ("success", "maybe"),
    "success that is a list": ("success", [1]),
    "score of 1e200": ("score", 1e200),
    "score that is an object": ("score", Odd()),
    "stop that is no reason": ("stop", "never"),
    "stop that is a number": ("stop", 5),
    "invocation that is no number": ("invocation", {AGENT: "first"}),
    "parent that is a list": ("parent", {AGENT: [1]}),
}

OBSERVATIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "None": (ENVIRONMENT, lambda: None),
    "a text": (ENVIRONMENT, lambda: "say red"),
    "an array": (ENVIRONMENT, lambda: np.zeros(4, np.float32)),
    "a text that is a number": (ENVIRONMENT, lambda: _seen(text=5)),
    "a text of bytes": (ENVIRONMENT, lambda: _seen(text=b"say red")),
    "a state key that is a tuple": (ENVIRONMENT, lambda: _seen(state_key=(1, 2))),
    "an instruction that is a list": (ENVIRONMENT, lambda: _seen(instruction=["do"])),
    "a vector of two dimensions": (ENVIRONMENT, lambda: _seen(vector=np.zeros((2, 2), np.float32))),
    "a vector that is a number": (ENVIRONMENT, lambda: _seen(vector=np.float32(1))),
    "a vector with NaN": (ENVIRONMENT, lambda: _seen(vector=np.full(4, np.nan, np.float32))),
    "a vector with infinity": (ENVIRONMENT, lambda: _seen(vector=np.array([0, np.inf, 0, 0]))),
    "a vector of texts": (ENVIRONMENT, lambda: _seen(vector=np.array(["a", "b", "c", "d"]))),
    "a vector of objects": (ENVIRONMENT, lambda: _seen(vector=np.array([Odd(), 1, 2, 3], object))),
    "a vector that is no array": (ENVIRONMENT, lambda: _seen(vector=Odd())),
    "an image of floats": (ENVIRONMENT, lambda: _with_image(np.zeros((2, 2, 3)))),
    "legal acts that are a text": (ENVIRONMENT, lambda: _seen(legal="red")),
    "legal acts that are a number": (ENVIRONMENT, lambda: _seen(legal=5)),
    "messages that are a text": (ENVIRONMENT, lambda: _seen(messages="say red")),
    "messages that are texts": (ENVIRONMENT, lambda: _seen(messages=["say red"])),
    "a message without a role": (ENVIRONMENT, lambda: _seen(messages=[{"content": "say red"}])),
    "tools that are a text": (ENVIRONMENT, lambda: _seen(tools="tool")),
    "a vector that is a list": (FINE, lambda: _seen(vector=[1, 0, 0, 0])),
    "a text of a class of its own": (FINE, lambda: _seen(text=type("Text", (str,), {})("say red"))),
    "other characters": (FINE, lambda: _seen(text="é \u202eabc \U0001f600\t\n\f\r\n <script>")),
    "half a character": (REPLACED, lambda: _seen(text="say\ud800 red")),
    "NUL": (REPLACED, lambda: _seen(text="say\x00 red")),
    "an escape": (REPLACED, lambda: _seen(text="\x1b[2Jsay red")),
    "a control character of two bytes": (REPLACED, lambda: _seen(text="\x9b2Jsay red")),
    "10 MB": (REPLACED, lambda: _seen(text="é" * 10_000_000)),
    "half a character in the state key": (REPLACED, lambda: _seen(state_key="\udc00")),
    "half a character in a legal act": (REPLACED, lambda: _seen(legal=["red", "\ud800"])),
    "NUL in a message": (REPLACED, lambda: _seen(messages=[{"role": "user", "content": "say\x00 red"}])),
    "an object in a message": (REPLACED, lambda: _seen(messages=[{"role": "user", "content": "red", "by": Odd()}])),
}

REWARDS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a text": (ENVIRONMENT, lambda: "1.0"),
    "None": (ENVIRONMENT, lambda: None),
    "NaN": (ENVIRONMENT, lambda: float("nan")),
    "infinity": (ENVIRONMENT, lambda: -np.inf),
    "1e308": (ENVIRONMENT, lambda: 1e308),
    "−1e30": (ENVIRONMENT, lambda: -1e30),
    "10**400": (ENVIRONMENT, lambda: 10**400),
    "a tensor of two": (ENVIRONMENT, lambda: torch.ones(2)),
    "a complex number": (ENVIRONMENT, lambda: 1j),
    "a list": (ENVIRONMENT, lambda: [1.0]),
    "a dict": (ENVIRONMENT, lambda: {"task": 1.0}),
    "an object": (ENVIRONMENT, Odd),
    "a tensor": (FINE, lambda: torch.tensor(0.5)),
    "a number of numpy": (FINE, lambda: np.float32(0.5)),
    "a truth value": (FINE, lambda: True),
}

RESULTS: dict[str, tuple[str, Callable[[StepResult], Any]]] = {
    "None": (ENVIRONMENT, lambda result: None),
    "a dict": (ENVIRONMENT, lambda result: {"observations": {}}),
    "a tuple as in Gymnasium": (ENVIRONMENT, lambda result: (np.zeros(4), 0.0, False, False, {})),
    "a text": (ENVIRONMENT, lambda result: "over"),
    "a function": (ENVIRONMENT, lambda result: lambda: result),
    "the class": (ENVIRONMENT, lambda result: StepResult),
    "observations that are None": (ENVIRONMENT, lambda result: _with(result, observations=None)),
    "observations that are a list": (ENVIRONMENT, lambda result: _with(result, observations=[_seen()])),
    "an observation of nobody": (ENVIRONMENT, lambda result: _with(result, observations={"nobody": _seen()})),
    "an agent that is a number": (ENVIRONMENT, lambda result: _with(result, observations={0: _seen()})),
    "an agent of half a character": (ENVIRONMENT, lambda result: _with(result, observations={"\ud800": _seen()})),
    "rewards that are None": (ENVIRONMENT, lambda result: _with(result, rewards=None)),
    "rewards that are a number": (ENVIRONMENT, lambda result: _with(result, rewards=1.0)),
    "a reward of an agent of 5,000 digits": (ENVIRONMENT, lambda result: _with(result, rewards={10**5000: 1.0})),
    "a reward of nobody": (ENVIRONMENT, lambda result: _with(result, rewards={"nobody": 1.0})),
    "terminated that is a text": (ENVIRONMENT, lambda result: _with(result, terminated=AGENT)),
    "terminated that is true": (ENVIRONMENT, lambda result: _with(result, terminated=True)),
    "truncated that is None": (ENVIRONMENT, lambda result: _with(result, truncated=None)),
    "an end of nobody": (ENVIRONMENT, lambda result: _with(result, terminated=frozenset({"nobody"}))),
    "last of nobody": (ENVIRONMENT, lambda result: _with(result, last={"nobody": _seen()})),
    "last that is a text": (ENVIRONMENT, lambda result: _with(result, last={AGENT: "the end"})),
    "info that is None": (ENVIRONMENT, lambda result: _with(result, info=None)),
    "info that is a text": (ENVIRONMENT, lambda result: _with(result, info="fine")),
    "info that refuses": (ENVIRONMENT, lambda result: _with(result, info=Refusing())),
    "names of info that are no texts": (FINE, lambda result: _with(result, info={1: 2.0, "b": 1.0, None: 0.5})),
    "no observation": (FINE, lambda result: _with(result, observations={})),
    "an end in a list": (FINE, lambda result: _with(result, observations={}, terminated=[AGENT])),
    "cut without last": (FINE, lambda result: _with(result, observations={}, truncated=frozenset({AGENT}))),
}


def _with(result: StepResult, **changes: Any) -> StepResult:
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def _seen(**changes: Any) -> Observation:
    return Observation(**{"text": "say red", "vector": np.array([1, 0, 0, 0], np.float32)} | changes)


def _with_image(image: Any) -> Observation:
    seen = _seen()
    seen.image = image
    return seen


def _listed() -> dict[str, tuple[str, Fault]]:
    """Name of each fault → what becomes of the episode, and the fault."""
    found: dict[str, tuple[str, Fault]] = {}
    for name, error in ERRORS.items():
        found[f"step raises: {name}"] = (ENVIRONMENT, _raise(error))
        found[f"reset raises: {name}"] = (ENVIRONMENT, _raise(error))
        found[f"close raises: {name}"] = (FINE, _raise(error))
    found["step raises: a failure of a tool"] = (
        TOOL,
        _raise(lambda: EpisodeFailure(boundary="tool", where="the map", what="it is torn.")),
    )
    found["step calls itself without end"] = (ENVIRONMENT, lambda world, result: _endless())
    found["reset gives no observation"] = (ENVIRONMENT, lambda world, result: StepResult(observations={}))
    for name, (end, result_of) in RESULTS.items():
        found[f"step returns: {name}"] = (end, lambda world, result, give=result_of: give(result))
        if end == ENVIRONMENT and name.startswith(("None", "a ", "observations")):
            found[f"reset returns: {name}"] = (end, lambda world, result, give=result_of: give(result))
    for name, (end, make) in OBSERVATIONS.items():
        found[f"observation: {name}"] = (
            end,
            lambda world, result, make=make: _with(result, observations={AGENT: make()}),
        )
    for name, (end, make) in REWARDS.items():
        found[f"reward: {name}"] = (end, lambda world, result, make=make: _with(result, rewards={AGENT: make()}))
    for name, (end, make) in INFO.items():
        found[f"info: {name}"] = (end, lambda world, result, make=make: _with(result, info={"given": make()}))
    for name, (key, value) in NAMED_INFO.items():
        found[f"info: {name}"] = (
            ENVIRONMENT,
            lambda world, result, key=key, value=value: _with(result, info={key: value}),
        )
    return found


FAULTS = _listed()
