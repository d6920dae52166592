"""Contexts, which turn an agent's history into prompt ids: the full history, a window, or the latest observation.

A conversation only appends ids and never renders an earlier turn again. A new segment repeats the ids of the turns that
it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.chat.render import ChatRenderer, Renderer, head_of, reply_of
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


class Dialogue:
    """A conversation by a chat template, which writes the whole dialogue at every turn.

    Where the template only adds to what it wrote before, the turn is added to the segment. Where it writes an earlier
    turn in another way, for instance without the thoughts of a reply, a new segment begins with the dialogue as the
    template writes it now. What was sampled stays exact in the segment in which it was sampled.

    Args:
        turns: most turns in a prompt; None: all. drop: number of turns that are dropped at once. keep_first: never drop
            the first turn.
    """

    def __init__(
        self, renderer: ChatRenderer, turns: int | None = None, drop: int = 1, keep_first: bool = False
    ) -> None:
        self._renderer, self._turns, self._drop, self._keep_first = renderer, turns, drop, keep_first
        self._held: list[list[dict[str, Any]]] = []  # the messages of each held turn, its reply last
        self._shown = ""  # the segment as text
        self._instruction: str | None = None
        self._segment, self._fresh = -1, True
        self.length = 0

    def observe(self, observation: Observation) -> Prompt:
        if not self._held and self._segment < 0:
            self._instruction = observation.instruction
            self._held.append(self._renderer.opening(None, observation))
        else:
            self._held.append([self._renderer.turn(observation)])
        if self._turns is not None and len(self._held) > self._turns:
            pinned = 1 if self._keep_first and self._turns > 1 else 0
            del self._held[pinned : pinned + min(self._drop, len(self._held) - 1 - pinned)]
            self._fresh = True
        written, follows = self._written()
        fresh = self._fresh or not follows
        ids = self._renderer.ids(written if fresh else written[len(self._shown) :])
        self._segment += fresh
        self.length = len(ids) if fresh else self.length + len(ids)
        self._shown, self._fresh = written, False
        return Prompt(ids, self._segment, fresh)

    def _written(self) -> tuple[str, bool]:
        """The dialogue as text, and whether it begins with what the segment shows."""
        written = self._renderer.written(self._messages())
        if not self._fresh and not written.startswith(self._shown):
            reply = self._held[-2][-1]  # some templates write a space before a reply, which the model has sampled
            spaced, reply["content"] = reply["content"], reply["content"].lstrip()
            without = self._renderer.written(self._messages())
            if without.startswith(self._shown):
                return without, True
            reply["content"] = spaced
        return written, written.startswith(self._shown)

    def _messages(self) -> list[dict[str, Any]]:
        messages = [message for turn in self._held for message in turn]
        return self._renderer.led(self._instruction, messages)

    def respond(self, ids: np.ndarray) -> None:
        renderer, kept = self._renderer, [int(i) for i in ids]
        closing = renderer.closing
        count = next((n for n in range(len(closing), 0, -1) if tuple(kept[-n:]) == closing[:n]), 0)
        kept = kept[: len(kept) - count]
        if kept and not count and kept[-1] in renderer.stop:  # an end that the template does not write
            kept.pop()
            self._fresh = True
        said = renderer.said(np.array(kept, np.int32))
        self._held[-1].append(reply_of(said, thinking=renderer.thinking(self._shown)))
        self._shown += renderer.as_written(said) + renderer.closed(count)
        self.length += len(ids)


@register("context", "full_history")
class FullHistory(Context):
    """The prompt has everything since the start of the episode. It is one segment, so the engine reads each id once."""

    def start(self, renderer: Renderer) -> Conversation:
        return Dialogue(renderer) if isinstance(renderer, ChatRenderer) else _Appending(renderer)


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
        kind = Dialogue if isinstance(renderer, ChatRenderer) else _Windowed
        return kind(renderer, self._turns, self._drop, self._keep_first)  # type: ignore[arg-type]


@register("context", "latest_only")
class LatestOnly(Context):
    """The prompt has the present observation only, so each turn is a segment. For observations that say everything."""

    def start(self, renderer: Renderer) -> Conversation:
        return Dialogue(renderer, 1) if isinstance(renderer, ChatRenderer) else _Windowed(renderer, 1, 1, False)
