"""The context `sampled_history`: it samples how many past observations an episode shows, and keeps all past actions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pydantic

from palaestra.chat.renderers import Renderer, head_of
from palaestra.data import Observation, derive
from palaestra.data.protocols import Context, Prompt
from palaestra.errors import InvalidData
from palaestra.registry import register

Count = Annotated[int, pydantic.Field(ge=0)]


def history_probabilities(most: int, lam: float) -> np.ndarray:
    """The probabilities p(k) ∝ exp(lam · k) of showing k = 0 … most past observations: float64 (most + 1,)."""
    scores = np.exp(lam * (np.arange(most + 1) - (most if lam > 0 else 0)))
    found: np.ndarray = scores / scores.sum()
    return found


@dataclass(slots=True, eq=False)
class _Remembered:
    """One agent's history: the ids of all turns; only the last `seen` past observations are shown."""

    renderer: Renderer
    seen: int
    head: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    turns: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # observation, response
    segment: int = 0
    length: int = 0

    def observe(self, observation: Observation) -> Prompt:
        """Add an observation, and return the prompt: new ids only, or the whole prompt where an observation is left
        out.
        """
        ids, fresh = self.renderer.observation(observation, first=not self.turns), not self.turns
        if fresh:
            self.head = head_of(self.renderer, observation)
        shown = len(self.turns) - self.seen  # the prompt leaves out observations before this turn
        if shown > 0:
            self.segment, fresh = self.segment + 1, True
        past = [piece for place, turn in enumerate(self.turns) for piece in (turn if place >= shown else turn[1:])]
        prompt = np.concatenate([self.head, *past, ids]).astype(np.int32) if fresh else ids
        self.length = len(self.head) + sum(map(len, past)) + len(ids)
        self.turns.append((ids, np.zeros(0, np.int32)))
        return Prompt(prompt, self.segment, fresh)

    def respond(self, ids: np.ndarray) -> None:
        """Add a response to the last turn.

        Raises: InvalidData, for an empty response, since nothing would separate the turns once observations are left
            out.
        """
        if not len(ids):
            raise InvalidData(
                where="context: sampled_history",
                what="a response has no tokens, so nothing of its turn would stay once the observation is left out.",
                remedy="Use a policy that answers in tokens, or another context.",
            )
        self.turns[-1] = (self.turns[-1][0], np.asarray(ids, np.int32))
        self.length += len(ids)


@register("context", "sampled_history", source="arXiv 2512.01763")
class SampledHistory(Context):
    """Show all past actions and the last k observations, with k ≤ most sampled per episode: p(k) ∝ exp(lam · k).

    The policy thus learns to act with long and with short histories. A turn whose observation is left out keeps the ids
    of its response. Leaving an observation out breaks the prefix, so from turn k + 1 on every turn is its own segment.

    Args:
        most: the largest k. Higher: longer prompts. Usual: 2.
        lam: the exponent of p(k). Higher: long histories more often; 0: all equally often. Usual: 1.
        compress: show no past observation, whatever k is, which makes prompts much shorter; the strategy
            `dual_branch` then adds a twin that shows them.
        seed: for sampling k; episodes of the same group and sample get the same k.

    Differs from the authors' code: they leave hidden states of past observations out from the 6th of 36 layers on,
        so that lower layers still read them. Here the tokens are left out at the input, which suits small models
        with few layers and needs no change of the engine.
    """

    def __init__(self, *, most: Count = 2, lam: float = 1.0, compress: bool = False, seed: int = 0) -> None:
        self._most, self._lam, self._compress, self._seed = most, lam, compress, seed

    def start(self, renderer: Renderer) -> _Remembered:
        """The history of an episode without a key, with k = `most`."""
        return _Remembered(renderer, 0 if self._compress else self._most)

    def start_for(self, renderer: Renderer, key: Hashable) -> _Remembered:
        """The history of the episode and agent that `key` names, with its sampled k."""
        return _Remembered(renderer, 0 if self._compress else self.drawn(key))

    def drawn(self, key: Hashable) -> int:
        """The k that is sampled for this episode: how many past observations it shows where nothing is compressed."""
        draw = np.random.default_rng(derive(self._seed, "history", key))
        return int(draw.choice(self._most + 1, p=history_probabilities(self._most, self._lam)))

    @property
    def uncompressed(self) -> SampledHistory | None:
        """A context with the same k and without compression; None, if this context does not compress."""
        if not self._compress:
            return None
        return SampledHistory(most=self._most, lam=self._lam, seed=self._seed)
