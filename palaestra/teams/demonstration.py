"""Demonstrations for teams in which every role proposes an action: the expert speaks for each role of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.data import Action, Observation, Step, derive
from palaestra.rollout.programs import options_of

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode


async def everybody_as_expert(episode: Episode, *, noise: float = 0.0) -> None:
    """Play the program of the run. Each agent that is asked gives the action of the environment's expert.

    A share `noise` of the messages is made wrong, so that agents read wrong messages beside right ones. The wrong
    messages are not learned.
    """
    await episode.setup.program(_Played(episode, noise))


def option_of(episode: Episode, name: str, default: Any) -> Any:
    """The value of an option of the program in the recipe, or the default if there is no recipe."""
    return options_of(episode.setup.program).get(name, default)


def spoiled(text: str, draw: np.random.Generator) -> str:
    """A wrong text that looks like the given one: with another last digit or, if there is no digit, one word less."""
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    if places:
        digit = (int(text[places[-1]]) + 1 + int(draw.integers(9))) % 10
        return f"{text[: places[-1]]}{digit}{text[places[-1] + 1 :]}"
    return " ".join(text.split()[:-1]) or "?"


class _Played:
    """An episode whose agents record the expert's actions instead of acting. All else is that of the given episode."""

    def __init__(self, episode: Episode, noise: float) -> None:
        self._episode, self.agents = episode, _Recorders(episode, noise)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)


class _Recorders(dict[str, "_Recorder"]):
    def __init__(self, episode: Episode, noise: float) -> None:
        super().__init__()
        self._episode, self._noise = episode, noise

    def __missing__(self, name: str) -> _Recorder:
        self[name] = _Recorder(self._episode.agents[name], self._noise)
        return self[name]


@dataclass(slots=True)
class _Recorder:
    """An agent that gives the expert's action, or a wrong one for a share `noise` of its acts."""

    agent: Agent
    noise: float
    draw: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(derive(self.agent.episode.play.seed, "noise", self.agent.name))

    @property
    def last(self) -> Step | None:
        return self.agent.last

    async def act(self, shown: Observation | str) -> Action:
        episode = self.agent.episode
        right = await episode.expert(episode.names[0])
        if self.draw.random() >= self.noise:
            return self.agent.record(shown, right)
        return self.agent.record(shown, spoiled(right.text or "", self.draw), noise=1.0)

    async def ask(self, shown: Observation | str, parse: Callable[[str], Any]) -> Any:
        return (self.agent.role.parser or parse)((await self.act(shown)).text or "")
