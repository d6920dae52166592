"""Policies that are not trained: the environment's expert, random play, and a person at the terminal."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.data import Action, NextPrompt, Observation, RunSetup
from palaestra.data.abilities import box_of
from palaestra.data.protocols import Oracle, Policy, Response, Sampling, Session
from palaestra.errors import EpisodeFailure
from palaestra.process.terminal import visible
from palaestra.registry import register


@dataclass(slots=True)
class ScriptedSession(Session):
    """A session that gets its actions from a function of the observation, a seed and the environment's expert."""

    answer: Callable[[Observation, np.random.Generator, Oracle | None], Awaitable[Action]]
    oracle: Oracle | None = None

    async def act(self, observation: Observation, *, seed: int) -> Response:
        return Response(action=await self.answer(observation, np.random.default_rng(seed), self.oracle))

    def record(self, observation: Observation, action: Action) -> Response:
        return Response(action=action)

    def fork(self, key: Hashable) -> ScriptedSession:
        """A session with the same function. It has no expert until its episode calls `hear_expert`."""
        return ScriptedSession(self.answer)

    def hear_expert(self, ask: Oracle) -> None:
        self.oracle = ask

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None


class _Scripted(Policy):
    """A policy without weights."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name, self.trainable, self.version = name, False, 0
        self._answer = answer

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> ScriptedSession:
        return ScriptedSession(self._answer)


@register("policy", "expert")
def expert(name: str, setup: RunSetup) -> _Scripted:
    """Act as the environment's expert does."""

    async def answer(observation: Observation, draw: np.random.Generator, oracle: Oracle | None) -> Action:
        assert oracle is not None
        return await oracle()

    return _Scripted(name, answer)


@register("policy", "random")
def random(name: str, setup: RunSetup) -> _Scripted:
    """Choose a legal action at random, or a vector between the environment's bounds. All are equally likely."""
    box = None if setup.source is None else box_of(setup.source)

    async def answer(observation: Observation, draw: np.random.Generator, oracle: Oracle | None) -> Action:
        legal = observation.legal
        if legal is None and box is not None:
            point = draw.uniform(*box).astype(np.float32)
            return Action(text=" ".join(f"{number:.2f}" for number in point), value=point)
        if legal is None and setup.action_count is None:
            raise EpisodeFailure(
                boundary="engine",
                where=f"policy {name}",
                what="random play needs to know the actions, and this environment does not list them.",
                remedy="Set `Observation.legal`, or give the environment an `action_count` or an `action_box`.",
            )
        choices = legal if legal is not None else range(setup.action_count or 0)
        choice = choices[int(draw.integers(len(choices)))]
        return Action(text=str(choice), value=choice)

    return _Scripted(name, answer)


def _read(prompt: str) -> str:
    """Read a line from the terminal.

    Raises: EpisodeFailure, at the end of the input; KeyboardInterrupt, at the first Ctrl-C.
    """
    # The handler of the event loop would wait until the line is complete.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    except EOFError:
        raise EpisodeFailure(
            boundary="engine",
            where="policy human",
            what="the input ended before the episode did.",
            remedy="Type an action each turn, or pipe one line for each turn.",
        ) from None
    finally:
        signal.signal(signal.SIGINT, former)


@register("policy", "human")
def human(name: str, setup: RunSetup) -> _Scripted:
    """Ask a person at the terminal, who types an action in words or the number of a listed action."""

    async def answer(observation: Observation, draw: np.random.Generator, oracle: Oracle | None) -> Action:
        if observation.instruction:
            print(f"\n{visible(observation.instruction)}")
        print(f"\n{visible(observation.text if observation.text is not None else observation.vector)}")
        legal = list(observation.legal or [])
        for place, choice in enumerate(legal):
            print(f"  {place}: {visible(choice)}")
        typed = _read(f"{visible(name)}> ").strip()
        if typed.isdigit() and int(typed) < len(legal):
            return Action(text=str(legal[int(typed)]), value=legal[int(typed)])
        return Action(text=typed, value=typed)

    return _Scripted(name, answer)
