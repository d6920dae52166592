"""Makes training samples for a language model from recorded steps.

Each step of a segment extends the token ids of the step before it. So all steps of a segment are one sequence, and the
model reads each token only once, however many turns an episode has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Row, Step, Trajectory
from palaestra.data.batches import Beginnings
from palaestra.data.trajectory import Picture
from palaestra.models.packing import PackedRow
from palaestra.models.pictures import PictureReader, read_again


class LanguageInputs(NamedTuple):
    """A batch of samples as tensors.

    Attributes:
        ids: int64 (samples, length), padded on the right.
        response: rows and columns of the hidden states that give the logits of the response tokens, (tokens,) each.
        targets: int64 (tokens,), ids of the response tokens.
        ends: int64 (samples,), columns of the hidden states that give the values after a cut; −1 without one.
        lengths: length of each sample without padding.
        temperature: the sampling temperature.
        row: the samples packed into one row, whose ids are `ids`; None: they are padded.
        pictures: of each sample, with `inputs`; empty, if no sample has any.
    """

    ids: Tensor
    response: tuple[Tensor, Tensor]
    targets: Tensor
    ends: Tensor
    lengths: list[int]
    temperature: float
    row: PackedRow | None = None
    pictures: tuple[tuple[Picture, ...], ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class LanguageSamples:
    """The fields of `palaestra.data.protocols.Samples`, and the token ids.

    Attributes:
        ids: for each sample, int32 (length,).
        places: for each sample, the positions of its response tokens in `ids`.
        ends: int64 (samples,), the last position of the prompt after a cut, where its value is read; −1 without one.
        temperature: the sampling temperature. Log-probabilities are computed at it.
        token_cost: for models that read packed rows, `palaestra.models.packing.cost_of_token`; None: batches are
            padded.
        pictures: for each sample, what stands for images in its ids; empty, if no sample has any.
        reader: reads them; None: the model reads no pictures.
        beginnings: for models that read packed rows, which samples begin alike.
    """

    ids: list[np.ndarray]
    places: list[np.ndarray]
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray
    ends: np.ndarray
    temperature: float
    token_cost: float | None = None
    pictures: list[tuple[Picture, ...]] = field(default_factory=list)
    reader: PictureReader | None = None
    cost: np.ndarray = field(init=False)
    beginnings: Beginnings | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.cost = np.array([len(ids) for ids in self.ids], np.int64)
        if self.token_cost is not None:
            self.beginnings = Beginnings(self.ids)

    def batch(self, which: Sequence[int], *, device: str | torch.device = "cpu") -> LanguageInputs:
        """Put these samples on a device: packed, or padded on the right, where a causal model does not read padding."""
        if self.token_cost is not None:
            return self._packed(which, self.token_cost, device)
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
        shown = tuple(self.pictures[i] for i in which) if self.pictures else ()
        if any(shown):
            shown = tuple(read_again(self.reader, one, where="a sample with pictures") for one in shown)
        return LanguageInputs(
            tensor, (row, column), target, end, lengths, self.temperature, pictures=shown if any(shown) else ()
        )

    def _packed(self, which: Sequence[int], token_cost: float, device: str | torch.device) -> LanguageInputs:
        row = PackedRow([self.ids[i] for i in which], token=token_cost)
        columns = [at[self.places[i] - 1] for at, i in zip(row.places, which, strict=True)]
        targets = [self.ids[i][self.places[i]] for i in which]
        ends = [at[self.ends[i]] if self.ends[i] >= 0 else -1 for at, i in zip(row.places, which, strict=True)]
        ids, column, target, end = (
            torch.from_numpy(np.asarray(array, np.int64)).to(device)
            for array in (row.ids, np.concatenate(columns), np.concatenate(targets), ends)
        )
        lengths = self.cost[list(which)].tolist()
        return LanguageInputs(
            ids[None], (torch.zeros_like(column), column), target, end, lengths, self.temperature, row
        )


def samples_of(
    ids: Sequence[np.ndarray],
    places: Sequence[np.ndarray],
    *,
    ends: Sequence[int] | None = None,
    temperature: float = 1.0,
    token_cost: float | None = None,
    pictures: Sequence[tuple[Picture, ...]] = (),
    reader: PictureReader | None = None,
) -> LanguageSamples:
    """Samples of token ids that belong to no recorded step. Their response tokens are numbered one after the other.

    Args:
        ends: for each sample, the position where the value after a cut is read; −1 without one. None: nowhere.
            The others: see `LanguageSamples`.
    """
    lengths = [len(one) for one in places]
    last = np.full(len(ids), -1, np.int64) if ends is None else np.asarray(ends, np.int64)
    return LanguageSamples(
        ids=list(ids),
        places=list(places),
        token_index=np.arange(sum(lengths)),
        token_start=np.cumsum([0, *lengths]),
        end_row=last,
        ends=last,
        temperature=temperature,
        token_cost=token_cost,
        pictures=list(pictures),
        reader=reader,
    )


@dataclass(slots=True, eq=False)
class _Open:
    """A sequence to which steps are still added."""

    pieces: list[np.ndarray]
    length: int = 0
    places: list[np.ndarray] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    end_row: int = -1

    def append(self, row: Row) -> None:
        prompt, response = row.step.prompt, row.step.action.tokens
        start = self.length + len(prompt)
        self.pictures += [picture.moved(self.length) for picture in row.step.pictures]
        self.pieces += [prompt, response]
        self.places.append(np.arange(start, start + len(response)))
        self.tokens.append(np.arange(row.start, row.start + len(response)))
        self.length = start + len(response)


def pictures_of(trajectory: Trajectory, step: Step) -> tuple[Picture, ...]:
    """The pictures in `trajectory.prompt_of(step)`."""
    length, pictures = 0, list[Picture]()
    for earlier in trajectory.steps:
        if earlier.agent == step.agent and earlier.segment == step.segment:
            pictures += [picture.moved(length) for picture in earlier.pictures]
            if earlier is step:
                break
            length += len(earlier.prompt) + len(earlier.action.tokens)
    return tuple(pictures)


def collate(
    rows: Sequence[Row],
    *,
    temperature: float,
    limit: int,
    token_cost: float | None = None,
    reader: PictureReader | None = None,
) -> LanguageSamples:
    """Make one sequence for each trajectory, agent and segment, in the order of rows.

    If an agent was cut off, its next prompt is needed for the value after the cut. The prompt is appended if it
    continues the last segment. Otherwise it becomes a separate sequence without response tokens.

    Args:
        limit: most tokens of a sequence; the rest is cut.
        token_cost, reader: see `LanguageSamples`.
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
            sequence.pictures += [picture.moved(sequence.length) for picture in prompt.pictures]
            sequence.pieces.append(prompt.ids)
            sequence.end_row = row.index
    empty = [np.zeros(0, np.int64)]
    ids = [np.concatenate(sequence.pieces)[:limit] for sequence in opened.values()]
    tokens = [np.concatenate(sequence.tokens or empty) for sequence in opened.values()]
    pictures = [tuple(one for one in sequence.pictures if one.start < limit) for sequence in opened.values()]
    end_row = np.array([sequence.end_row for sequence in opened.values()], np.int64)
    return LanguageSamples(
        ids=ids,
        places=[np.concatenate(sequence.places or empty) for sequence in opened.values()],
        token_index=np.concatenate(tokens or empty),
        token_start=np.cumsum([0, *(len(t) for t in tokens)]),
        end_row=end_row,
        ends=np.where(end_row >= 0, [len(i) - 1 for i in ids], -1),
        temperature=temperature,
        token_cost=token_cost,
        pictures=pictures if any(pictures) else [],
        reader=reader,
    )
