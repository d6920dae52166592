"""`check_context`: users check with it that their own context keeps the rules of contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.chat import Context, Renderer
from palaestra.data import Observation
from palaestra.data.protocols import complete
from palaestra.errors import ContractError


class _Letters:
    """A renderer with readable ids: 1 opens an observation, 2 asks for an action, 3 ends it, others are characters."""

    stop = (3,)

    def instruction(self, text: str) -> np.ndarray:
        return np.array([ord(letter) for letter in text], np.int32)

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        return np.array([1, *(ord(letter) for letter in observation.text or ""), 2], np.int32)

    def action(self, text: str) -> np.ndarray:
        return np.array([*(ord(letter) for letter in text), 3], np.int32)

    def text(self, ids: np.ndarray) -> str:
        return "".join(chr(i) for i in ids if i > 3)


class _Recording:
    """A renderer that keeps the ids of the last observation that it rendered."""

    def __init__(self, renderer: Any) -> None:
        self._renderer, self.stop, self.last = renderer, renderer.stop, np.zeros(0, np.int32)

    def instruction(self, text: str) -> np.ndarray:
        return np.asarray(self._renderer.instruction(text))

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        self.last = self._renderer.observation(observation, first=first)
        return self.last

    def action(self, text: str) -> np.ndarray:
        return np.asarray(self._renderer.action(text))

    def text(self, ids: np.ndarray) -> str:
        return str(self._renderer.text(ids))


def check_context(context: Context, *, turns: int = 12, renderer: Renderer | None = None) -> None:
    """Play turns with a context and refuse it if it breaks a rule.

    1. A fresh prompt starts a segment with a new number. Any other prompt continues the present segment.
    2. `length` is the number of ids in the present segment.
    3. A prompt ends with the present observation. The context may put text of its own before the observation.
    4. Nothing is rendered twice: the ids of a fresh prompt are earlier turns, or earlier responses alone, followed by
        the present observation.

    Args:
        turns: number of turns to play.
        renderer: renderer for the context. None: one with readable ids.

    Raises: ContractError, for the first rule that is broken.
    """
    plain = renderer or _Letters()
    renderer = _Recording(plain)
    talk: Any = complete(context, Context, where="context").start(renderer)
    segments: dict[int, list[int]] = {}
    pieces: list[tuple[list[int], list[int]]] = []
    for turn in range(turns):
        observation = Observation(text=f"seen {'x' * (turn % 5)}{turn}")
        prompt = talk.observe(observation)
        ids = prompt.ids.tolist()
        _rule(prompt.fresh == (prompt.segment not in segments), "a segment is fresh exactly once", turn)
        segments.setdefault(prompt.segment, []).extend(ids)
        shown = renderer.last.tolist()
        bare = plain.observation(observation, first=turn == 0).tolist()[1:]  # without the id that opens it
        _rule(ids[-len(shown) :] == shown, "a prompt ends with the present observation", turn)
        _rule(shown[-len(bare) :] == bare, "a prompt ends with the present observation", turn)
        _rule(_made_of(ids[: -len(shown)], pieces), "earlier ids are repeated as they were", turn)
        answer = renderer.action(f"act{turn}")
        talk.respond(answer)
        segments[prompt.segment].extend(answer.tolist())
        _rule(talk.length == len(segments[prompt.segment]), "`length` counts the ids of the segment", turn)
        pieces.append((shown, answer.tolist()))


def _made_of(ids: list[int], pieces: Sequence[tuple[list[int], list[int]]]) -> bool:
    """Whether `ids` consists of earlier turns in order, each of them whole or as its response alone."""
    place = 0
    for shown, answer in pieces:
        for piece in (shown + answer, answer):
            if ids[place : place + len(piece)] == piece:
                place += len(piece)
                break
    return place == len(ids)


def _rule(holds: bool, rule: str, turn: int) -> None:
    if not holds:
        raise ContractError(
            where=f"context, turn {turn}",
            what=f"it breaks the rule: {rule}.",
            remedy="`help(palaestra.testing.check_context)` lists the rules.",
        )
