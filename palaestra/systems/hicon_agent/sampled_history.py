"""The sampled history: how many past observations a policy sees differs from episode to episode; past actions stay.

Knows renderers and seeds. Knows nothing of engines, models and environments.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pydantic

from palaestra.chat.render import Renderer, head_of
from palaestra.data import Observation, derive
from palaestra.data.protocols import Context, Prompt
from palaestra.errors import InvalidData
from palaestra.registry import register

Count = Annotated[int, pydantic.Field(ge=0)]


def history_probabilities(most: int, lam: float) -> np.ndarray:
    """p(k) ∝ exp(lam · k) of k = 0 … most past observations: float64 (most + 1,)."""
    scores = np.exp(lam * (np.arange(most + 1) - (most if lam > 0 else 0)))
    found: np.ndarray = scores / scores.sum()
    return found


@dataclass(slots=True, eq=False)
class _Remembered:
    """One agent's history: ids of every turn, of which the last `seen` observations are shown, and all responses."""

    renderer: Renderer
    seen: int
    head: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    turns: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # observation, response
    segment: int = 0
    length: int = 0

    def observe(self, observation: Observation) -> Prompt:
        ids, fresh = self.renderer.observation(observation, first=not self.turns), not self.turns
        if fresh:
            self.head = head_of(self.renderer, observation)
        shown = len(self.turns) - self.seen  # observations of turns before this one are left out
        if shown > 0:
            self.segment, fresh = self.segment + 1, True
        past = [piece for place, turn in enumerate(self.turns) for piece in (turn if place >= shown else turn[1:])]
        prompt = np.concatenate([self.head, *past, ids]).astype(np.int32) if fresh else ids
        self.length = len(self.head) + sum(map(len, past)) + len(ids)
        self.turns.append((ids, np.zeros(0, np.int32)))
        return Prompt(prompt, self.segment, fresh)

    def respond(self, ids: np.ndarray) -> None:
        """Raises: InvalidData, for an empty response: observations without actions between them have no order."""
        if not len(ids):
            raise InvalidData(
                where="context: sampled_history",
                what="a response has no tokens, so nothing of its turn would stay once the observation is left out.",
                remedy="Past actions anchor this history; use a policy that answers in tokens, or another context.",
            )
        self.turns[-1] = (self.turns[-1][0], np.asarray(ids, np.int32))
        self.length += len(ids)


@register("context", "sampled_history", source="arXiv 2512.01763")
class SampledHistory(Context):
    """All past actions, and the last k observations with k drawn for each episode: p(k) ∝ exp(lam · k), k ≤ most.

    The policy so learns to do with much history and with little. What is left out leaves its response behind: the
    ids of a forgotten turn are those of its action alone. Leaving an observation out breaks the prefix, so from turn
    k + 1 on every turn is a segment of its own.
    """

    def __init__(self, *, most: Count = 2, lam: float = 1.0, compress: bool = False, seed: int = 0) -> None:
        """
        Args:
            most: largest k. Higher: longer prompts, more to read. Usual: 2.
            lam: of the draw. Higher: long histories more often; 0: all equally often. Usual: 1.
            compress: show no past observation, whatever k is; the strategy `dual_branch` then adds a twin that shows
                them. Prompts are a fraction as long.
            seed: of the draw; an episode of the same group and sample draws the same k.

        Differs from the authors' code: they leave hidden states of past observations out from the 6th of 36 layers
        on, so that lower layers still read them; here their tokens are left out at the input, which small models with
        few layers allow and which needs nothing of the engine.
        """
        self._most, self._lam, self._compress, self._seed = most, lam, compress, seed

    def start(self, renderer: Renderer) -> _Remembered:
        """Of an episode that nobody named: k is `most`."""
        return _Remembered(renderer, 0 if self._compress else self._most)

    def start_for(self, renderer: Renderer, key: Hashable) -> _Remembered:
        """Of the episode and agent that `key` names."""
        return _Remembered(renderer, 0 if self._compress else self.drawn(key))

    def drawn(self, key: Hashable) -> int:
        """How many past observations the uncompressed history of this episode shows."""
        draw = np.random.default_rng(derive(self._seed, "history", key))
        return int(draw.choice(self._most + 1, p=history_probabilities(self._most, self._lam)))

    @property
    def uncompressed(self) -> SampledHistory | None:
        """The same draws with nothing left out but what is older than k; None, if this context shows that already."""
        if not self._compress:
            return None
        return SampledHistory(most=self._most, lam=self._lam, seed=self._seed)
