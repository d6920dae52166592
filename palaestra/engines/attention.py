"""Attention of many sessions at once: all new tokens lie in one row, keys and values lie in blocks.

New tokens of all sessions are packed into one row without padding. Only attention treats sessions separately. Several
new tokens of a session are attended in pieces that end where a block ends, so a piece has the same shape whoever
computes it. Tokens that are alone in their piece (decoding) are attended together: a few batched products over ranges
of blocks. A block that several of these sessions share is read once. No session's numbers depend on which others are
in the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from palaestra.engines.blocks import BLOCK, Arena, BlockStore

# (layer, queries (tokens, heads, width), keys and values (tokens, kv heads, width)) → (tokens, heads, width)
Attend = Callable[..., Tensor]

# Rows are padded to this number: from 8 rows on, matrix products give a row the same bits whatever the others are,
# and elementwise kernels have no odd tail.
ROW_MULTIPLE = 16
# A block without work costs as much as one with work; a further kernel call costs about as much as four blocks.
LARGEST_GAP = 3
# Smaller blocks (bytes of one layer's keys) are copied for each session that shares them. Larger ones are read once for
# all their sessions. Their queries are padded to a multiple of 4 rows: then a row's bits do not depend on the others.
SMALL_BLOCK = 16 * 1024
SHARED_ROWS = 4
# Up to this context one causal mask is kept and sliced.
LARGEST_TABLE = 2048


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


class Row(NamedTuple):
    """New tokens of one session: `ids` go to positions `start`, `start` + 1, … of its `blocks`."""

    blocks: Sequence[int]
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def pieces(self) -> Iterator[Row]:
        """The row, cut where blocks end."""
        start = self.start
        while start < self.end:
            end = min((start // BLOCK + 1) * BLOCK, self.end)
            yield Row(self.blocks[: (end - 1) // BLOCK + 1], start, self.ids[start - self.start : end - self.start])
            start = end


@dataclass(slots=True)
class _Write:
    """Where new keys and values go in one arena. `tokens`: those of this arena; None: all."""

    arena: Arena
    tokens: Tensor | None
    blocks: Tensor
    offsets: Tensor


@dataclass(slots=True)
class _Read:
    """One product over blocks of an arena, for pairs of block and session number `begin`:`stop`.

    Attributes:
        which: blocks less the arena's first; a slice is read in place, a tensor is copied.
        owners: how many pairs each block has.
    """

    arena: Arena
    begin: int
    stop: int
    which: slice | Tensor
    owners: int = 1


class _Decode:
    """The blocks that decoding sessions read.

    A pair is one block and one session that reads it; `owner` (pairs,) is the session. `grid` (sessions · most blocks)
    are the pairs of a session in order, `len(owner)` where it has none; `place` (pairs,) is a pair's place in the grid.
    """

    def __init__(self, rows: Sequence[Row], store: BlockStore, *, merge: bool) -> None:
        self.sessions, self.most = len(rows), max(len(row.blocks) for row in rows)
        readers: dict[int, list[tuple[int, int]]] = {}  # block → (session, place among its blocks)
        for number, row in enumerate(rows):
            for rank, block in enumerate(row.blocks):
                readers.setdefault(block, []).append((number, rank))
        self.reads: list[_Read] = []
        self._pairs: list[tuple[int, int] | None] = []
        for arena in store.arenas:
            mine = sorted(block for block in readers if arena.first <= block < arena.stop)
            self._add(arena, mine, readers, merge=merge, device=store.device)
        count = len(self._pairs)
        grid, owner, place = [count] * (self.sessions * self.most), [0] * count, [0] * count
        start, end = [0] * count, [1] * count
        for pair, reader in enumerate(self._pairs):
            if reader is not None:
                number, rank = reader
                owner[pair], place[pair] = number, number * self.most + rank
                grid[place[pair]] = pair
                start[pair], end[pair] = rank * BLOCK, rows[number].end
        # In the most frequent case sessions have a block each, and their order is that of the blocks.
        self.plain = self.most == 1 and owner == list(range(self.sessions))
        table = torch.tensor([owner, place, start, end], device=store.device)
        self.owner, self.place, self._start, self._end = table.unbind()
        self.grid = torch.tensor(grid, device=store.device)

    def _add(
        self,
        arena: Arena,
        blocks: Sequence[int],
        readers: dict[int, list[tuple[int, int]]],
        *,
        merge: bool,
        device: torch.device,
    ) -> None:
        several = [block for block in blocks if len(readers[block]) > 1]
        single = [block for block in blocks if len(readers[block]) == 1]
        cuts = [i for i in range(1, len(single)) if single[i] - single[i - 1] > LARGEST_GAP + 1]
        edges = [0, *cuts, len(single)] if single else []
        for left, right in zip(edges, edges[1:], strict=False):
            low, high = single[left], single[right - 1] + 1
            chosen = set(single[left:right])
            pairs = [readers[block][0] if block in chosen else None for block in range(low, high)]
            self._read(arena, pairs, slice(low - arena.first, high - arena.first), 1)
        if several and merge:
            # Blocks with about as many sessions are read together, so that few rows are empty.
            by_size: dict[int, list[int]] = {}
            for block in several:
                by_size.setdefault(1 << (len(readers[block]) - 1).bit_length(), []).append(block)
            for owners, alike in sorted(by_size.items()):
                pairs = [pair for b in alike for pair in (*readers[b], *[None] * (owners - len(readers[b])))]
                self._read(arena, pairs, torch.tensor([b - arena.first for b in alike], device=device), owners)
        elif several:
            copies = [block - arena.first for block in several for _ in readers[block]]
            pairs = [pair for block in several for pair in readers[block]]
            self._read(arena, pairs, torch.tensor(copies, device=device), 1)

    def _read(self, arena: Arena, pairs: Sequence[tuple[int, int] | None], which: slice | Tensor, owners: int) -> None:
        begin = len(self._pairs)
        self._pairs += pairs
        self.reads.append(_Read(arena, begin, len(self._pairs), which, owners))

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (pairs, 1, 1, 64)."""
        places = self._start[:, None] + torch.arange(BLOCK, device=self._start.device)
        visible = places < self._end[:, None]
        if window is not None:
            visible &= places >= self._end[:, None] - window
        return _additive(visible, dtype)[:, None, None]


class Batch:
    """The input of one forward pass: pieces of rows packed in one row, decoding pieces first.

    Args:
        rows: one per session.
        store: holds the keys and values of these rows.

    Attributes:
        ids, positions: int64 (tokens,), padded to a multiple of 16 with zeros; `real` of them are true tokens.
        last: int64 (rows,), index of each row's last token.
    """

    def __init__(self, rows: Sequence[Row], store: BlockStore) -> None:
        device = store.device
        self.store = store
        pieces = [(number, piece) for number, row in enumerate(rows) for piece in row.pieces()]
        # Long pieces follow short ones, so that equal batches are packed equally.
        pieces.sort(key=lambda pair: (len(pair[1].ids) > 1, pair[1].blocks[-1] if len(pair[1].ids) == 1 else 0))
        packed = [piece for _, piece in pieces]
        self.real = sum(len(row.ids) for row in rows)
        last, end = [0] * len(rows), 0
        for number, piece in pieces:
            end += len(piece.ids)
            if piece.end == rows[number].end:
                last[number] = end - 1
        positions = [p for piece in packed for p in range(piece.start, piece.end)]
        blocks = [piece.blocks[-1] for piece in packed for _ in piece.ids]
        padding = [0] * (round_up(self.real, ROW_MULTIPLE) - self.real)
        self.ids = torch.tensor([i for piece in packed for i in piece.ids] + padding, device=device)
        self.positions = torch.tensor(positions + padding, device=device)
        self.last = torch.tensor(last, device=device)
        self._writes = list(_writes(blocks, positions, store))
        decoding = [piece for piece in packed if len(piece.ids) == 1]
        shape = store.shape
        self._merge = shape.heads * shape.width * BLOCK * store.dtype.itemsize >= SMALL_BLOCK
        self._decoding = len(decoding)
        self._decode = _Decode(decoding, store, merge=self._merge) if decoding else None
        by_row = itertools.groupby(pieces[len(decoding) :], key=lambda pair: pair[0])
        self._long = [[piece for _, piece in group] for _, group in by_row]
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
        for write in self._writes:
            mine = (slice(0, self.real) if write.tokens is None else write.tokens,)
            write.arena.keys[layer].permute(0, 3, 1, 2).index_put_((write.blocks, write.offsets), key[mine])
            write.arena.values[layer].transpose(1, 2).index_put_((write.blocks, write.offsets), value[mine])
        out = torch.zeros_like(query) if self.real < len(query) else torch.empty_like(query)
        if self._decode is not None:
            one = query[: self._decoding]
            out[: self._decoding] = self._attend_decoding(self._decode, layer, one, scaling, window, softcap)
        begin = self._decoding
        for pieces in self._long:
            keys, values = _gathered(self.store, layer, pieces[-1].blocks)
            for piece in pieces:
                stop = begin + len(piece.ids)
                cached = keys[:, : piece.end], values[:, : piece.end]
                bias = self._bias(piece, window, query.dtype)
                out[begin:stop] = _append(query[begin:stop], *cached, bias, scaling, softcap)
                begin = stop
        return out

    def _attend_decoding(
        self, plan: _Decode, layer: int, query: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        sessions, heads, width = query.shape
        groups, most, count = self.store.shape.heads, plan.most, len(plan.owner)
        share = heads // groups
        rows = round_up(share, SHARED_ROWS) if self._merge else share
        queries = query.reshape(sessions, groups, share, width)
        if rows > share:
            queries = F.pad(queries, (0, 0, 0, rows - share))
        if not plan.plain:
            queries = queries.index_select(0, plan.owner)
        # One more pair, for sessions with fewer blocks than others: it has no weight and adds nothing.
        scores = query.new_empty(count + 1, groups, rows, BLOCK)
        for read in plan.reads:
            _multiply(queries, _some(read.arena.keys[layer], read.which), scores, read)
        scores[:count].mul_(scaling)
        if softcap is not None:
            scores[:count].div_(softcap).tanh_().mul_(softcap)
        scores[:count].add_(self._decode_mask(plan, window, query.dtype))
        scores[count] = -torch.inf
        if plan.plain:
            weights = scores[:count].softmax(-1)
        elif most == 1:
            weights = scores.index_select(0, plan.grid).softmax(-1).index_select(0, plan.place)
        else:
            flat = scores.view(count + 1, groups * rows, BLOCK).index_select(0, plan.grid)
            flat = flat.view(sessions, most, -1, BLOCK).transpose(1, 2).reshape(sessions, -1, most * BLOCK).softmax(-1)
            flat = flat.view(sessions, -1, most, BLOCK).transpose(1, 2).reshape(sessions * most, -1, BLOCK)
            weights = flat.index_select(0, plan.place).view(count, groups, rows, BLOCK)
        parts = query.new_empty(count + 1, groups, rows, width)
        for read in plan.reads:
            _multiply(weights, _some(read.arena.values[layer], read.which), parts, read)
        if plan.plain:
            out = parts[:count]
        elif most == 1:
            out = parts.index_select(0, plan.grid)
        else:
            parts[count] = 0
            out = parts.index_select(0, plan.grid).view(sessions, most, groups, rows, width).sum(1)
        return out[:, :, :share].reshape(sessions, heads, width)

    def _decode_mask(self, plan: _Decode, window: int | None, dtype: torch.dtype) -> Tensor:
        name = ("decoding", window)
        if name not in self._masks:
            self._masks[name] = plan.mask(window, dtype)
        return self._masks[name]

    def _bias(self, piece: Row, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (new tokens, cached tokens) of one piece."""
        if piece.end <= LARGEST_TABLE and window is None:
            return _table(self.store.device, dtype)[piece.start : piece.end, : piece.end]
        name = (piece.start, piece.end, window)
        if name not in self._masks:
            device = self.store.device
            here = torch.arange(piece.start, piece.end, device=device)[:, None]
            there = torch.arange(piece.end, device=device)
            visible = there <= here
            if window is not None:
                visible &= there > here - window
            self._masks[name] = _additive(visible, dtype)
        return self._masks[name]


def _writes(blocks: Sequence[int], positions: Sequence[int], store: BlockStore) -> Iterator[_Write]:
    for arena in store.arenas:
        mine = [token for token, block in enumerate(blocks) if arena.first <= block < arena.stop]
        if mine:
            places = [(blocks[token] - arena.first, positions[token] % BLOCK) for token in mine]
            where = torch.tensor(places, device=store.device)
            tokens = torch.tensor(mine, device=store.device) if len(mine) < len(blocks) else None
            yield _Write(arena, tokens, where[:, 0].contiguous(), where[:, 1].contiguous())


def _some(cache: Tensor, which: slice | Tensor) -> Tensor:
    return cache[which] if isinstance(which, slice) else cache.index_select(0, which)


def _multiply(left: Tensor, blocks: Tensor, out: Tensor, read: _Read) -> None:
    """out[pair] = left[pair] @ block of the pair, for the pairs of one read: (…, rows, a) @ (…, a, b)."""
    mine = left[read.begin : read.stop]
    count, groups, rows, inner = mine.shape
    matrices = blocks.reshape(-1, inner, blocks.shape[-1])
    if read.owners == 1:
        result = out[read.begin : read.stop].view(count * groups, rows, -1)
        torch.bmm(mine.reshape(count * groups, rows, inner), matrices, out=result)
        return
    distinct = count // read.owners
    together = mine.view(distinct, read.owners, groups, rows, inner).transpose(1, 2)
    result = torch.bmm(together.reshape(distinct * groups, read.owners * rows, inner), matrices)
    apart = result.view(distinct, groups, read.owners, rows, -1).transpose(1, 2)
    out[read.begin : read.stop].view(distinct, read.owners, groups, rows, -1).copy_(apart)


def _gathered(store: BlockStore, layer: int, blocks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Keys and values (kv heads, 64 · blocks, width) of one session."""
    keys, values = [], []
    begin = 0
    while begin < len(blocks):
        arena = store.arena(blocks[begin])
        end = begin
        while end < len(blocks) and arena.first <= blocks[end] < arena.stop:
            end += 1
        low, count = blocks[begin] - arena.first, end - begin
        which: slice | Tensor = slice(low, low + count)
        if list(blocks[begin:end]) != list(range(blocks[begin], blocks[begin] + count)):
            which = torch.tensor([block - arena.first for block in blocks[begin:end]], device=store.device)
        keys.append(_some(arena.keys[layer], which))
        values.append(_some(arena.values[layer], which))
        begin = end
    # Contiguous, also if it is one block: kernels give other bits for other strides.
    key = torch.cat(keys).permute(1, 0, 3, 2).flatten(1, 2)
    value = torch.cat(values).transpose(0, 1).flatten(1, 2)
    return key.contiguous(), value.contiguous()


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


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


@functools.cache
def _table(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The causal mask of a long context, made once per device and type."""
    visible = torch.ones(LARGEST_TABLE, LARGEST_TABLE, dtype=torch.bool, device=device).tril()
    return _additive(visible, dtype)
