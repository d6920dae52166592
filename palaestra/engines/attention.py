"""Attention of many sessions at once: all new tokens lie in one row, keys and values lie in slots.

New tokens of all sessions are packed into one row without padding. Only attention treats sessions separately. A session
with several new tokens gets one kernel call on views of its slot. Sessions with one new token (decoding) are sorted by
slot and cut into runs of neighboring slots; each run is two batched products on views. No cache is ever copied, and no
session's numbers depend on which others are in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from palaestra.engines.slots import SlotStore

# (layer, queries (tokens, heads, width), keys and values (tokens, kv heads, width)) → (tokens, heads, width)
Attend = Callable[..., Tensor]

# Rows are padded to this number: from 8 rows on, matrix products give a row the same bits whatever the others are,
# and elementwise kernels have no odd tail.
ROW_MULTIPLE = 16
# Cached lengths that decoding reads are rounded up to this number, for the same reason.
LENGTH_MULTIPLE = 64
# A slot without work costs as much as one with work; a further kernel call costs about as much as four slots.
LARGEST_GAP = 3
# Up to this context one causal mask is kept and sliced.
LARGEST_TABLE = 2048


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


class Row(NamedTuple):
    """New tokens of one session: `ids` go to positions `start`, `start` + 1, … of `slot`."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(slots=True)
class Run:
    """Decoding rows `begin`:`stop` whose slots lie in `low`:`high`; `places` are their slots less `low`."""

    begin: int
    stop: int
    low: int
    high: int
    places: Tensor | None  # None: no gaps
    ends: Tensor  # (high − low,), 1 for slots that do not decode
    longest: int


class Batch:
    """The input of one forward pass: rows packed in the order of `order`, decoding rows first.

    Args:
        rows: one per session.
        store: holds the keys and values of these rows.

    Attributes:
        order: positions of `rows` in packing order.
        ids, positions: int64 (tokens,), padded to a multiple of 16 with zeros; `real` of them are true tokens.
        last: int64 (rows,), index of each row's last token, in packing order.
    """

    def __init__(self, rows: Sequence[Row], store: SlotStore) -> None:
        device = store.keys.device
        self.store = store
        # Long rows follow short ones, so that equal batches are packed equally.
        self.order = sorted(range(len(rows)), key=lambda i: (len(rows[i].ids) > 1, rows[i].slot))
        packed = [rows[i] for i in self.order]
        self.real = sum(len(row.ids) for row in packed)
        padding = [0] * (round_up(self.real, ROW_MULTIPLE) - self.real)
        self.ids = torch.tensor([i for row in packed for i in row.ids] + padding, device=device)
        self.positions = torch.tensor([p for row in packed for p in range(row.start, row.end)] + padding, device=device)
        counts = torch.tensor([len(row.ids) for row in packed], device=device)
        self.last = counts.cumsum(0) - 1
        self._slots = torch.tensor([row.slot for row in packed], device=device).repeat_interleave(counts)
        decoding = sum(len(row.ids) == 1 for row in packed)
        self._runs = _runs(packed[:decoding], device)
        self._long = packed[decoding:]
        self._masks: dict[object, Tensor] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Store new keys and values (tokens, kv heads, width); attention of `query` (tokens, heads, width)."""
        keys, values = self.store.keys[layer], self.store.values[layer]
        positions = self.positions[: self.real]
        keys.transpose(1, 2).index_put_((self._slots, positions), key[: self.real])
        values.transpose(1, 2).index_put_((self._slots, positions), value[: self.real])
        out = torch.zeros_like(query) if self.real < len(query) else torch.empty_like(query)
        for run in self._runs:
            out[run.begin : run.stop] = self._decode(run, query, keys, values, scaling, window, softcap)
        begin = self._runs[-1].stop if self._runs else 0
        for row in self._long:
            stop = begin + len(row.ids)
            cached = keys[row.slot, :, : row.end], values[row.slot, :, : row.end]
            bias = self._bias(row, window, query.dtype)
            out[begin:stop] = _append(query[begin:stop], *cached, bias, scaling, softcap)
            begin = stop
        return out

    def _decode(
        self,
        run: Run,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        heads, groups = query.shape[1], keys.shape[1]
        mine = query[run.begin : run.stop]
        if run.places is not None:
            mine = query.new_zeros(run.high - run.low, *query.shape[1:]).index_copy_(0, run.places, mine)
        grouped = mine.view(len(mine), groups, heads // groups, -1)
        near = slice(run.low, run.high)
        scores = torch.matmul(grouped, keys[near, :, : run.longest].transpose(2, 3)).mul_(scaling)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        weights = scores.add_(self._decode_mask(run, window, query.dtype)).softmax(-1)
        out = torch.matmul(weights, values[near, :, : run.longest]).view_as(mine)
        return out if run.places is None else out[run.places]

    def _decode_mask(self, run: Run, window: int | None, dtype: torch.dtype) -> Tensor:
        name = (run.begin, window)
        if name not in self._masks:
            places = torch.arange(run.longest, device=run.ends.device)
            ends = run.ends[:, None]
            visible = places < ends
            if window is not None:
                visible &= places >= ends - window
            self._masks[name] = _additive(visible, dtype)[:, None, None]
        return self._masks[name]

    def _bias(self, row: Row, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (new tokens, cached tokens) of one row."""
        if row.end <= LARGEST_TABLE and window is None:
            return _table(self.store, dtype)[row.start : row.end, : row.end]
        name = (row.slot, row.start, window)
        if name not in self._masks:
            device = self.store.keys.device
            here = torch.arange(row.start, row.end, device=device)[:, None]
            there = torch.arange(row.end, device=device)
            visible = there <= here
            if window is not None:
                visible &= there > here - window
            self._masks[name] = _additive(visible, dtype)
        return self._masks[name]


def _append(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """Attention of one session's new tokens: query (new, heads, width), keys and values (kv heads, cached, width)."""
    new, heads, width = query.shape
    groups = keys.shape[0]
    # The heads that share a key become the batch: keys are read in place, with stride 0 along it.
    shared = query.view(new, groups, heads // groups, width).permute(2, 1, 0, 3)
    keys, values = (cache.expand(heads // groups, *cache.shape) for cache in (keys, values))
    if softcap is None:
        out = F.scaled_dot_product_attention(shared, keys, values, attn_mask=bias, scale=scaling)
    else:
        scores = torch.matmul(shared, keys.transpose(2, 3)) * scaling
        out = torch.matmul((softcap * torch.tanh(scores / softcap) + bias).softmax(-1), values)
    return out.permute(2, 1, 0, 3).reshape(new, heads, width)


def _runs(rows: Sequence[Row], device: torch.device) -> list[Run]:
    """Cut rows, sorted by slot, into runs at gaps of more than `LARGEST_GAP` slots without work."""
    cuts = [i for i in range(1, len(rows)) if rows[i].slot - rows[i - 1].slot > LARGEST_GAP + 1]
    edges = [0, *cuts, len(rows)] if rows else []
    return [_run(rows, begin, stop, device) for begin, stop in zip(edges, edges[1:], strict=False)]


def _run(rows: Sequence[Row], begin: int, stop: int, device: torch.device) -> Run:
    mine = rows[begin:stop]
    low, high = mine[0].slot, mine[-1].slot + 1
    ends = [1] * (high - low)
    for row in mine:
        ends[row.slot - low] = row.end
    gaps = len(mine) < high - low
    return Run(
        begin=begin,
        stop=stop,
        low=low,
        high=high,
        places=torch.tensor([row.slot - low for row in mine], device=device) if gaps else None,
        ends=torch.tensor(ends, device=device),
        longest=round_up(max(ends), LENGTH_MULTIPLE),
    )


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


_tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def _table(store: SlotStore, dtype: torch.dtype) -> Tensor:
    """The causal mask of a whole context, made once per length, device and type."""
    length = min(store.length, LARGEST_TABLE)
    name = (length, store.keys.device, dtype)
    if name not in _tables:
        visible = torch.ones(length, length, dtype=torch.bool, device=store.keys.device).tril()
        _tables[name] = _additive(visible, dtype)
    return _tables[name]
