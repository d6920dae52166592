"""Samples actions from logits. The draw of a row depends only on its logits and its seed, not on a random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Action
from palaestra.data.entropy_signal import EntropyTemperature, factors


@dataclass(slots=True, eq=False)
class Choice:
    """The actions that `act_batch` chooses for n rows.

    Attributes:
        index: int32 (n,), the chosen actions.
        logprob: float32 (n,), their log-probabilities under the distribution that was sampled from.
        entropy: float32 (n,), of the distribution at `temperature`, before `entropy_temperature`; None, unless asked.
        finite: bool (n,), False where the logits are not finite and the row must not be used.
        memory: (n, memory), for the next act; None without memory.
    """

    index: np.ndarray
    logprob: np.ndarray
    entropy: np.ndarray | None
    finite: np.ndarray
    memory: Tensor | None = None

    def action(self, row: int) -> Action:
        """The action of one row. The index is its value, its only token and, as digits, its text."""
        index = int(self.index[row])
        return Action(
            text=str(index),
            value=index,
            tokens=self.index[row : row + 1],
            logprobs=self.logprob[row : row + 1],
            entropy=None if self.entropy is None else self.entropy[row : row + 1],
        )


def uniform(seeds: Sequence[int]) -> np.ndarray:
    """Hash each seed to a number in [0, 1), by the finalizer of SplitMix64. Returns float64 (n,)."""
    z = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(
    logits: Tensor,
    seeds: Sequence[int],
    *,
    temperature: float | np.ndarray = 1.0,
    legal: np.ndarray | None = None,
    entropy: bool = False,
    entropy_temperature: Sequence[EntropyTemperature | None] = (),
) -> Choice:
    """Sample each row of float32 logits (n, actions) by inverting its distribution function at `uniform(seed)`.

        p = softmax(logits / temperature) over legal actions        index = #{a : Σ_{b ≤ a} p_b ≤ u}

    At temperature 0 the action with the largest logit is taken, and its log-probability and entropy are 0. If a row has
    an `entropy_temperature`, this changes the row's temperature by the entropy that it has at `temperature`.
    """
    at = np.broadcast_to(np.asarray(temperature, np.float32), len(logits))
    greedy = at == 0
    allowed = None if legal is None else torch.from_numpy(legal)
    p, logprobs = _distribution(logits, at, allowed)
    spread = None
    if entropy or any(entropy_temperature):
        spread = np.where(greedy, 0.0, -(p * logprobs).sum(1)).astype(np.float32)
    if any(entropy_temperature):
        at = (at * factors(entropy_temperature, torch.from_numpy(spread)).numpy()).astype(np.float32)
        p, logprobs = _distribution(logits, at, allowed)
    below = p.cumsum(1)
    index = (below <= (uniform(seeds) * below[:, -1])[:, None]).sum(1)
    index = np.where(greedy, logprobs.argmax(1), index).clip(max=logprobs.shape[1] - 1)
    chosen = np.where(greedy, np.float32(0), logprobs[np.arange(len(index)), index])
    finite = torch.isfinite(logits).all(1).numpy()
    return Choice(index.astype(np.int32), chosen, spread if entropy else None, finite)


def _distribution(logits: Tensor, at: np.ndarray, legal: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, float64, and log-probabilities, float32, at each row's temperature: (n, actions) each."""
    scaled = logits / torch.from_numpy(np.where(at == 0, np.float32(1), at))[:, None]
    logprobs = torch.log_softmax(masked(scaled, legal), -1).numpy()
    return np.exp(logprobs.astype(np.float64)), logprobs


def masked(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Lower the logits (n, actions) of illegal actions so far that their probability is 0."""
    # The lowest finite number also gives probability 0. With −∞, 0 · logprob would be NaN.
    return logits if legal is None else logits.masked_fill(~legal, torch.finfo(logits.dtype).min)


def stack_legal(masks: Sequence[np.ndarray | None], actions: int) -> np.ndarray | None:
    """Stack masks to bool (n, actions). A mask of None allows all actions. Returns None if all masks are None."""
    if all(mask is None for mask in masks):
        return None
    return np.stack([np.ones(actions, bool) if mask is None else mask for mask in masks])
