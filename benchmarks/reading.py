"""Compares two models without drawing anew: one reads the episodes of the other, and weighs each by its probability.

An episode that model q drew gets the weight w = p(its actions) / q(its actions), where p is the model that reads it.
With its success s, Σ w s / Σ w estimates the success of p, as far as q draws what p would draw. The same episodes stand
on both sides, so that the error of the difference is far smaller than with two independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

from palaestra.data.trajectory import Trajectory
from palaestra.evaluation.statistics import Interval

TOKENS = 4096  # of one batch, padding included


class Read(NamedTuple):
    """The ids of one segment of an episode: (length,). `at`: positions of the response tokens; `given`: their q."""

    episode: int
    ids: NDArray[np.int64]
    at: NDArray[np.int64]
    given: NDArray[np.float64]


@dataclass(frozen=True)
class Weighed:
    """What the weights say.

    Attributes:
        success: the share of successes of the model that reads.
        difference: this share minus that of the model that played, with an interval of 95 % over tasks.
        divergence: Kullback–Leibler divergence KL(q ‖ p) of an episode in nats, with an interval of 95 % over tasks.
        apart: mean of |log p − log q| over all tokens.
        effective: (Σ w)² / Σ w². Far fewer than the episodes means that the two models differ too much to compare so.
        episodes, tokens: how many were read.
    """

    success: float
    difference: Interval
    divergence: Interval
    apart: float
    effective: float
    episodes: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"success {self.success:.3f}, difference {self.difference}, divergence of an episode {self.divergence},"
            f" log-probability of a token {self.apart:.5f} apart, {self.effective:.0f} of {self.episodes} effective"
        )

    def to_json(self) -> Mapping[str, Any]:
        """The numbers as JSON values."""
        return asdict(self)


def reads(episodes: Sequence[Trajectory]) -> list[Read]:
    """What a model has to read: each segment of each agent of each episode."""
    found = []
    for index, episode in enumerate(episodes):
        steps = sorted(episode.steps, key=lambda step: (step.agent, step.segment, step.turn))
        for (agent, segment), members in groupby(steps, key=lambda step: (step.agent, step.segment)):
            at: list[int] = []
            given: list[float] = []
            length = 0
            for step in members:
                length += len(step.prompt)
                at += range(length, length + len(step.action.tokens))
                given += [] if step.action.logprobs is None else step.action.logprobs.tolist()
                length += len(step.action.tokens)
            ids = episode.sequence(agent, segment).astype(np.int64)
            found.append(Read(index, ids, np.array(at, np.int64), np.array(given, np.float64)))
    return found


def read_by(model: PreTrainedModel, segments: Sequence[Read], temperature: float) -> list[NDArray[np.float64]]:
    """For each segment log p − log q of each response token. A plain forward pass, padded on the right."""
    found: list[NDArray[np.float64]] = [np.zeros(0)] * len(segments)
    for batch in _batches(segments):
        width = max(len(segments[i].ids) for i in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.int64)
        seen = torch.zeros(len(batch), width, dtype=torch.int64)
        for row, i in enumerate(batch):
            length = len(segments[i].ids)
            ids[row, :length], seen[row, :length] = torch.from_numpy(segments[i].ids), 1
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=seen).logits
        for row, i in enumerate(batch):
            at = torch.from_numpy(segments[i].at)
            chosen = (logits[row, at - 1].double() / temperature).log_softmax(-1).gather(-1, ids[row, at, None])
            found[i] = chosen.squeeze(-1).numpy() - segments[i].given
    return found


def _batches(segments: Sequence[Read]) -> list[list[int]]:
    """Segments of similar length together, each batch with at most `TOKENS` tokens if it has more than one segment."""
    batches: list[list[int]] = []
    for i in sorted(range(len(segments)), key=lambda i: len(segments[i].ids)):
        if not batches or (len(batches[-1]) + 1) * len(segments[i].ids) > TOKENS:
            batches.append([])
        batches[-1].append(i)
    return batches


def weighed(
    folder: str, dtype: str, episodes: Sequence[Trajectory], solved: NDArray[np.float64], temperature: float
) -> Weighed:
    """Let the model of a folder read episodes.

    Args:
        episodes: task after task, with as many samples of each. Their log-probabilities must be those of sampling.
        solved: 1 for success, else 0: (tasks, samples).
        temperature: at which they were drawn, above 0.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False).eval()
    segments = reads(episodes)
    apart = read_by(model, segments, temperature)
    ratios = np.zeros(len(episodes))
    for segment, values in zip(segments, apart, strict=True):
        ratios[segment.episode] += values.sum()
    return judged(ratios.reshape(solved.shape), solved, np.concatenate(apart))


def judged(ratios: NDArray[np.float64], solved: NDArray[np.float64], apart: NDArray[np.float64]) -> Weighed:
    """The estimate from log-ratios r = log p − log q of episodes, and their successes: (tasks, samples).

    The divergence is the mean of e^r − 1 − r, which has the same expectation as −r and varies less (Schulman's k3).
    """
    weights = np.exp(ratios)
    of_task = [table.sum(axis=1) for table in (weights * solved, weights, solved)]
    share = of_task[0].sum() / of_task[1].sum()

    def difference(right: Any, whole: Any, plain: Any, axis: int = -1) -> Any:
        return right.sum(axis) / whole.sum(axis) - plain.mean(axis) / solved.shape[1]

    return Weighed(
        success=float(share),
        difference=_interval(of_task, difference),
        divergence=_interval([(np.expm1(ratios) - ratios).mean(axis=1)], np.mean),
        apart=float(np.abs(apart).mean()),
        effective=float(weights.sum() ** 2 / (weights**2).sum()),
        episodes=ratios.size,
        tokens=len(apart),
    )


def _interval(of_task: Sequence[NDArray[np.float64]], statistic: Any) -> Interval:
    """The value of a statistic with its bootstrap interval. Tasks are drawn whole."""
    random = np.random.default_rng(0)
    drawn = scipy.stats.bootstrap(of_task, statistic, paired=True, n_resamples=10_000, method="percentile", rng=random)
    bounds = drawn.confidence_interval
    return Interval(value=float(statistic(*of_task)), low=float(bounds.low), high=float(bounds.high), level=0.95)
