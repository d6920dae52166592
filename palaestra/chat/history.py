"""Contexts, which turn an agent's history into prompt ids: the full history, a window, or the latest observation.

A conversation only appends ids and never renders an earlier turn again. A new segment repeats the ids of the turns that
it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from palaestra.chat.render import Renderer, head_of
from palaestra.data import Observation
from palaestra.data.protocols import Context, Conversation, Prompt
from palaestra.registry import PositiveInt, register


class ContextFull(Exception):
    """The next prompt leaves no room for a response in the model's context."""


@dataclass(slots=True)
class _Appending:
    """One segment for the whole episode."""

    renderer: Renderer
    length: int = 0

    def observe(self, observation: Observation) -> Prompt:
        first = self.length == 0
        ids = self.renderer.observation(observation, first=first)
        if first:
            ids = np.concatenate([head_of(self.renderer, observation), ids])
        self.length += len(ids)
        return Prompt(ids, 0, first)

    def respond(self, ids: np.ndarray) -> None:
        self.length += len(ids)


@register("context", "full_history")
class FullHistory(Context):
    """The prompt has everything since the start of the episode. It is one segment, so the engine reads each id once."""

    def start(self, renderer: Renderer) -> Conversation:
        return _Appending(renderer)


class _Windowed:
    """Keeps whole turns. When it is full, it drops the oldest ones and starts a segment with the rest."""

    def __init__(self, renderer: Renderer, turns: int, drop: int, keep_first: bool) -> None:
        self._renderer, self._turns, self._drop, self._keep_first = renderer, turns, drop, keep_first
        self._held: list[np.ndarray] = []  # prompt and response ids of each held turn
        self._head = np.zeros(0, np.int32)
        self._segment, self._opened = 0, False
        self.length = 0

    def observe(self, observation: Observation) -> Prompt:
        fresh = not self._opened
        if fresh:
            self._head = head_of(self._renderer, observation)
        if len(self._held) >= self._turns:
            pinned = 1 if self._keep_first and self._turns > 1 else 0
            del self._held[pinned : pinned + min(self._drop, len(self._held) - pinned)]
            self._segment += 1
            fresh = True
        ids = self._renderer.observation(observation, first=not self._held)
        prompt = np.concatenate([self._head, *self._held, ids]).astype(np.int32) if fresh else ids
        self._held.append(ids)
        self._opened = True
        self.length = len(self._head) + sum(len(turn) for turn in self._held)
        return Prompt(prompt, self._segment, fresh)

    def respond(self, ids: np.ndarray) -> None:
        self._held[-1] = np.concatenate([self._held[-1], ids]).astype(np.int32)
        self.length += len(ids)


@register("context", "window")
class Window(Context):
    """The prompt has the last turns only. A new segment repeats the ids of the turns that are kept."""

    def __init__(self, *, turns: PositiveInt = 4, drop: PositiveInt = 1, keep_first: bool = False) -> None:
        """
        Args:
            turns: most turns in a prompt, the present one included. Higher: longer memory, more tokens.
            drop: number of turns that are dropped at once when the window is full. Higher: fewer segments, so fewer ids
                are read twice.
            keep_first: never drop the first turn, which often states the goal.
        """
        self._turns, self._drop, self._keep_first = turns, drop, keep_first

    def start(self, renderer: Renderer) -> Conversation:
        return _Windowed(renderer, self._turns, self._drop, self._keep_first)


@register("context", "latest_only")
class LatestOnly(Context):
    """The prompt has the present observation only, so each turn is a segment. For observations that say everything."""

    def start(self, renderer: Renderer) -> Conversation:
        return _Windowed(renderer, 1, 1, False)
