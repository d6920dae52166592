"""LanguageSamples: recorded steps as training samples of a language model.

Steps of one segment are one sequence, because their ids are an exact prefix of one another: each token is
read once however many turns an episode has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Row


class LanguageInputs(NamedTuple):
    """A batch as tensors: ids (samples, length), places of the response tokens' logits, their ids, ends; the length of
    each sample without padding, and the sampling temperature."""

    ids: Tensor
    response: tuple[Tensor, Tensor]
    targets: Tensor
    ends: Tensor
    lengths: list[int]
    temperature: float


@dataclass(slots=True, kw_only=True, eq=False)
class LanguageSamples:
    """Samples as `data.protocols.Samples` describes them, plus the ids.

    Attributes:
        ids: per sample int32 (length,); places: per sample, positions of its response tokens in `ids`.
        ends: int64 (samples,), the position where the value after the next prompt is read; −1 without one.
        temperature: the sampling temperature that log-probabilities are taken at.
    """

    ids: list[np.ndarray]
    places: list[np.ndarray]
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray
    ends: np.ndarray
    temperature: float
    cost: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.cost = np.array([len(ids) for ids in self.ids], np.int64)

    def batch(self, which: Sequence[int], *, device: str | torch.device = "cpu") -> LanguageInputs:
        """These samples on a device, padded on the right (the model is causal, so padding there is never seen)."""
        length = max(len(self.ids[i]) for i in which)
        ids = np.zeros((len(which), length), np.int64)
        for place, i in enumerate(which):
            ids[place, : len(self.ids[i])] = self.ids[i]
        rows = np.repeat(np.arange(len(which)), [len(self.places[i]) for i in which])
        places = np.concatenate([self.places[i] for i in which]).astype(np.int64)
        targets, ends = ids[rows, places], self.ends[list(which)]
        tensor, row, column, target, end = (
            torch.from_numpy(array).to(device) for array in (ids, rows, places - 1, targets, ends)
        )
        lengths = self.cost[list(which)].tolist()
        return LanguageInputs(tensor, (row, column), target, end, lengths, self.temperature)


@dataclass(slots=True, eq=False)
class _Open:
    """A sequence under construction."""

    pieces: list[np.ndarray]
    length: int = 0
    places: list[np.ndarray] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    end_row: int = -1

    def append(self, row: Row) -> None:
        prompt, response = row.step.prompt, row.step.action.tokens
        start = self.length + len(prompt)
        self.pieces += [prompt, response]
        self.places.append(np.arange(start, start + len(response)))
        self.tokens.append(np.arange(row.start, row.start + len(response)))
        self.length = start + len(response)


def collate(rows: Sequence[Row], *, temperature: float, limit: int) -> LanguageSamples:
    """One sequence per (trajectory, agent, segment), in row order.

    Where an agent was cut off, the prompt it would have seen next follows: appended if it continues the
    last segment, as a sequence of its own (without response tokens) if it starts a new one.
    """
    opened: dict[tuple[str, str, int], _Open] = {}
    last: dict[tuple[str, str], Row] = {}
    for row in rows:
        opened.setdefault((row.trajectory.id, row.step.agent, row.step.segment), _Open([])).append(row)
        last[(row.trajectory.id, row.step.agent)] = row
    for (trajectory, agent), row in last.items():
        prompt = row.trajectory.next_prompts.get(agent)
        if prompt is not None and row.step.truncated:
            sequence = opened.setdefault((trajectory, agent, prompt.segment), _Open([]))
            sequence.pieces.append(prompt.ids)
            sequence.end_row = row.index
    empty = [np.zeros(0, np.int64)]
    ids = [np.concatenate(sequence.pieces)[:limit] for sequence in opened.values()]
    tokens = [np.concatenate(sequence.tokens or empty) for sequence in opened.values()]
    end_row = np.array([sequence.end_row for sequence in opened.values()], np.int64)
    return LanguageSamples(
        ids=ids,
        places=[np.concatenate(sequence.places or empty) for sequence in opened.values()],
        token_index=np.concatenate(tokens or empty),
        token_start=np.cumsum([0, *(len(t) for t in tokens)]),
        end_row=end_row,
        ends=np.where(end_row >= 0, [len(i) - 1 for i in ids], -1),
        temperature=temperature,
    )
