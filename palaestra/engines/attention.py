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
from typing import Literal, NamedTuple, Protocol

import numpy as np
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
# Blocks up to this size (bytes of one layer's keys) are copied for each session that shares them. Larger ones are read
# once for all their sessions. Their queries are padded to a multiple of 4 rows: then a row's bits do not depend on the
# others, but small models would work longer on padding than on keys.
SMALL_BLOCK = 16 * 1024
SHARED_ROWS = 4
# Blocks of sessions with several new tokens are copied in groups of this size (bytes of one layer's keys).
COPIED_BYTES = 2**18
# Up to this context one causal mask is kept and sliced.
LARGEST_TABLE = 2048


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


class Inserted(NamedTuple):
    """What a session reads in place of the embeddings of some ids.

    Attributes:
        places: int64 (n,), positions in the session, rising. states: (n, width).
        positions: int64 (3, length), time, height and width of all ids of the session; None: their places alone.
    """

    places: np.ndarray
    states: Tensor | None
    positions: np.ndarray | None


class Row(NamedTuple):
    """New tokens of one session: `ids` go to positions `start`, `start` + 1, … of its `blocks`."""

    blocks: Sequence[int]
    start: int
    ids: Sequence[int]
    inserted: Inserted | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def pieces(self) -> list[Row]:
        """The row, cut where blocks end."""
        start, stop = self.start, self.end
        if start // BLOCK == len(self.blocks) - 1:
            return [self]
        pieces = []
        while start < stop:
            end = min((start // BLOCK + 1) * BLOCK, stop)
            ids = self.ids[start - self.start : end - self.start]
            pieces.append(Row(self.blocks[: (end - 1) // BLOCK + 1], start, ids, self.inserted))
            start = end
        return pieces


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


class DecodePlan:
    """Which blocks the decoding sessions read, and in which order. It holds as long as they have the same blocks.

    A pair is one block and one session that reads it; `owner` (pairs,) is the session. `grid` (sessions · most blocks)
    are the pairs of a session in order, `pairs` where it has none.

    Args:
        blocks: of each session. merge: read a block that several sessions share once, instead of copying it.
    """

    def __init__(self, blocks: Sequence[Sequence[int]], store: BlockStore, *, merge: bool) -> None:
        self._blocks = [list(held) for held in blocks]
        self._merge, self._device = merge, store.device
        counts = np.array([len(held) for held in blocks])
        self.sessions, self.most = len(counts), int(counts.max())
        flat = np.fromiter(itertools.chain.from_iterable(blocks), np.int64, int(counts.sum()))
        session = np.repeat(np.arange(self.sessions), counts)
        rank = np.arange(len(flat)) - np.repeat(counts.cumsum() - counts, counts)
        self.reads: list[_Read] = []
        self.pairs = 0
        self._where = np.zeros(len(flat), np.int64)  # the pair of each of `flat`
        order = flat.argsort(kind="stable")
        arena = np.searchsorted([arena.stop for arena in store.arenas], flat[order], side="right")
        edges = [0, *(np.flatnonzero(np.diff(arena)) + 1).tolist(), len(flat)]
        for left, right in itertools.pairwise(edges):
            self._read_arena(store.arenas[arena[left]], flat, order[left:right])
        self._owner = np.zeros(self.pairs, np.int64)
        self._rank = np.zeros(self.pairs, np.int64)
        self._owner[self._where], self._rank[self._where] = session, rank
        self._grid = np.full((self.sessions, self.most), self.pairs)
        self._grid[session, rank] = self._where
        # In the most frequent case sessions have a block each, and their order is that of the blocks.
        self.plain = self.most == 1 and self.pairs == self.sessions and bool((self._where == session).all())
        self.owner, self.grid = (torch.from_numpy(x).to(store.device) for x in (self._owner, self._grid.ravel()))
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}
        self._space: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}
        self._views: dict[tuple[int, str], list[Tensor]] = {}

    def holds(self, blocks: Sequence[Sequence[int]]) -> bool:
        """Whether it is the plan for sessions with these blocks."""
        return self._blocks == blocks

    def indices(self, rows: int) -> tuple[Tensor, Tensor]:
        """Indices that turn scores (pairs + 1, `rows`, 64) into (sessions, `rows`, most, 64), and those that turn
        these back into (pairs, `rows`, 64)."""
        if rows not in self._indices:
            number = np.arange(rows)
            there = self._grid[:, None, :] * rows + number[:, None]
            back = (self._owner[:, None] * rows + number) * self.most + self._rank[:, None]
            found = tuple(torch.from_numpy(x.ravel()).to(self._device) for x in (there, back))
            self._indices[rows] = (found[0], found[1])
        return self._indices[rows]

    def space(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor for results, zero at first and the same at each call: fresh memory takes longer than the numbers."""
        key = (name, shape, dtype)
        if key not in self._space:
            self._space[key] = torch.zeros(shape, dtype=dtype, device=self._device)
        return self._space[key]

    def matrices(self, layer: int, kind: Literal["keys", "values"]) -> list[Tensor]:
        """For each of `reads` its blocks in this layer, (blocks · heads, …)."""
        name = (layer, kind)
        if name in self._views:
            return self._views[name]
        matrices = [_some(getattr(read.arena, kind)[layer], read.which).flatten(0, 1) for read in self.reads]
        if all(isinstance(read.which, slice) for read in self.reads):
            self._views[name] = matrices  # views, which see what is written later
        return matrices

    def _read_arena(self, arena: Arena, flat: np.ndarray, order: np.ndarray) -> None:
        """Plan the products over an arena's blocks `flat[order]`, which are sorted."""
        blocks, begin, readers = np.unique(flat[order], return_index=True, return_counts=True)
        single = readers == 1
        alone, mine = blocks[single], order[begin[single]]
        cuts = np.flatnonzero(np.diff(alone) > LARGEST_GAP + 1) + 1
        for left, right in itertools.pairwise([0, *cuts.tolist(), len(alone)] if len(alone) else []):
            low, high = int(alone[left]), int(alone[right - 1]) + 1
            self._where[mine[left:right]] = self.pairs + alone[left:right] - low
            self._read(arena, slice(low - arena.first, high - arena.first), high - low, 1)
        # Blocks with about as many sessions are read together, so that few rows are empty.
        by_size: dict[int, list[int]] = {}
        for place in np.flatnonzero(~single).tolist():
            by_size.setdefault(1 << (int(readers[place]) - 1).bit_length() if self._merge else 1, []).append(place)
        for owners, alike in sorted(by_size.items()):
            which, pair = [], self.pairs
            for place in alike:
                count = int(readers[place])
                self._where[order[begin[place] : begin[place] + count]] = np.arange(pair, pair + count)
                copies = 1 if self._merge else count
                which += [int(blocks[place]) - arena.first] * copies
                pair += owners * copies
            self._read(arena, torch.tensor(which, device=self._device), pair - self.pairs, owners)

    def _read(self, arena: Arena, which: slice | Tensor, pairs: int, owners: int) -> None:
        self.reads.append(_Read(arena, self.pairs, self.pairs + pairs, which, owners))
        self.pairs += pairs


class Packed(Protocol):
    """The input of a forward pass: `Batch`, or a step of fixed size (`FixedStep`)."""

    ids: Tensor
    positions: Tensor
    last: Tensor

    @property
    def inserted(self) -> tuple[Tensor, Tensor] | None:
        """Indices of tokens, and what stands in place of their embeddings."""

    @property
    def axes(self) -> Tensor | None:
        """Time, height and width of each token."""

    def padded_last(self) -> Tensor:
        """`last`, padded like the tokens."""

    @property
    def attend(self) -> Attend:
        """Stores new keys and values, and gives the attention of queries."""


class Batch:
    """The input of one forward pass: pieces of rows packed in one row, decoding pieces first.

    Args:
        rows: one per session.
        store: holds the keys and values of these rows.
        before: the plan of the previous batch. It is used again if the decoding sessions and their blocks are the same.

    Attributes:
        ids, positions: int64 (tokens,), padded to a multiple of 16 with zeros; `real` of them are true tokens.
        last: int64 (rows,), index of each row's last token.
        inserted: indices (n,) of tokens, and the states (n, width) that stand in place of their embeddings; None:
            there are none.
        axes: int64 (3, tokens), time, height and width of each token; None: `positions` for all three.
        plan: of the decoding pieces; None, if there are none.
    """

    def __init__(self, rows: Sequence[Row], store: BlockStore, before: DecodePlan | None = None) -> None:
        device = store.device
        self.store = store
        pieces = [(number, piece) for number, row in enumerate(rows) for piece in row.pieces()]
        # Long pieces follow short ones, so that equal batches are packed equally.
        pieces.sort(key=lambda pair: (len(pair[1].ids) > 1, pair[1].blocks[-1] if len(pair[1].ids) == 1 else 0))
        packed = [piece for _, piece in pieces]
        last, end = [0] * len(rows), 0
        for number, piece in pieces:
            end += len(piece.ids)
            if piece.end == rows[number].end:
                last[number] = end - 1
        self.real = end
        positions = [p for piece in packed for p in range(piece.start, piece.end)]
        blocks = [piece.blocks[-1] for piece in packed for _ in piece.ids]
        padding = [0] * (round_up(self.real, ROW_MULTIPLE) - self.real)
        self.ids = torch.tensor([i for piece in packed for i in piece.ids] + padding, device=device)
        self.positions = torch.tensor(positions + padding, device=device)
        self.last = torch.tensor(last, device=device)
        self.inserted = _inserted(packed, device)
        self.axes = _axes(packed, self.positions)
        self._writes = list(_writes(blocks, positions, store))
        decoding = [piece for piece in packed if len(piece.ids) == 1]
        shape = store.shape
        self._merge = shape.heads * shape.width * BLOCK * store.dtype.itemsize > SMALL_BLOCK
        self._decoding = len(decoding)
        self.plan = None
        if decoding:
            held = [piece.blocks for piece in decoding]
            same = before is not None and before.holds(held)
            self.plan = before if same else DecodePlan(held, store, merge=self._merge)
        by_row = itertools.groupby(pieces[len(decoding) :], key=lambda pair: pair[0])
        self._long = list(_longs([[piece for _, piece in group] for _, group in by_row], store))
        sizes = [len(decoding), *[len(piece.ids) for piece in packed[len(decoding) :]], len(padding)]
        self._sizes = sizes if decoding else sizes[1:]
        self._masks: dict[object, Tensor] = {}

    def padded_last(self) -> Tensor:
        """`last`, padded like the tokens, so that the last product treats a row alike in every batch."""
        count = len(self.last)
        return F.pad(self.last, (0, round_up(count, ROW_MULTIPLE) - count))

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
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store new keys and values (tokens, kv heads, width); attention of `query` (tokens, heads, width).

        Args:
            sinks: (heads,), the logit of one more key of each head, whose value is zero.
        """
        padded = self.real < query.shape[0]
        for write in self._writes:
            new_key, new_value = key, value
            if write.tokens is not None:
                new_key, new_value = key.index_select(0, write.tokens), value.index_select(0, write.tokens)
            elif padded:
                new_key, new_value = key[: self.real], value[: self.real]
            write.arena.key_rows[layer].index_put_((write.blocks, write.offsets), new_key)
            write.arena.value_rows[layer].index_put_((write.blocks, write.offsets), new_value)
        new = query.split(self._sizes)
        parts = []
        if self.plan is not None:
            parts.append(self._attend_decoding(self.plan, layer, new[0] * scaling, window, softcap, sinks))
        number = len(parts)
        for long in self._long:
            keys, values = long.gathered(layer)
            for piece, begin in long.pieces:
                cached = keys.narrow(1, begin, piece.end), values.narrow(1, begin, piece.end)
                bias = self._bias(piece, window, query.dtype)
                parts.append(_append(new[number], *cached, bias, scaling, softcap, sinks))
                number += 1
        if padded:
            parts.append(query.new_zeros(query.shape[0] - self.real, query.shape[1], value.shape[-1]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _attend_decoding(
        self,
        plan: DecodePlan,
        layer: int,
        query: Tensor,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attention of decoding sessions; `query` is scaled."""
        sessions, heads, width = query.shape
        value_width = self.store.shape.value_width
        groups, most, count = self.store.shape.heads, plan.most, plan.pairs
        share = heads // groups
        rows = round_up(share, SHARED_ROWS) if self._merge else share
        queries = query.view(sessions, groups, share, width)
        if rows > share:
            queries = F.pad(queries, (0, 0, 0, rows - share))
        if not plan.plain:
            queries = queries.index_select(0, plan.owner)
        # One more pair, for sessions with fewer blocks than others: it stays zero, so it adds nothing.
        scores = plan.space("scores", (count + 1, groups, rows, BLOCK), query.dtype)
        parts = plan.space("parts", (count + 1, groups, rows, value_width), query.dtype)
        for read, matrices in zip(plan.reads, plan.matrices(layer, "keys"), strict=True):
            _multiply(queries, matrices, scores, read)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        if sinks is not None:
            sinks = F.pad(sinks.view(groups, share), (0, rows - share)).view(-1)
        weights = self._weights(plan, scores, self._decode_mask(plan, window, query.dtype), sinks)
        for read, matrices in zip(plan.reads, plan.matrices(layer, "values"), strict=True):
            _multiply(weights, matrices, parts, read)
        if plan.plain:
            out = parts[:count]
        else:
            out = parts.index_select(0, plan.grid)
            if most > 1:
                out = out.view(sessions, most, groups, rows, value_width).sum(1)
        return out[:, :, :share].reshape(sessions, heads, value_width)

    def _weights(self, plan: DecodePlan, scores: Tensor, mask: Tensor, sinks: Tensor | None) -> Tensor:
        """Softmax of scores (pairs + 1, heads, rows, 64) over the blocks of each session."""
        _, groups, rows, _ = scores.shape
        if plan.plain:
            by_session = scores[:-1].view(plan.sessions, -1, BLOCK)
        else:
            there, back = plan.indices(groups * rows)
            shape = (plan.sessions, groups * rows, plan.most * BLOCK)
            by_session = plan.space("by session", shape, scores.dtype)
            torch.index_select(scores.view(-1, BLOCK), 0, there, out=by_session.view(-1, BLOCK))
        weights = plan.space("weights", tuple(by_session.shape), scores.dtype)
        torch.softmax(by_session.add_(mask), -1, out=weights)
        if sinks is not None:
            weights.mul_(share_beside(by_session, sinks[:, None]))
        if plan.plain:
            return weights.view(-1, groups, rows, BLOCK)
        torch.index_select(weights.view(-1, BLOCK), 0, back, out=scores[:-1].view(-1, BLOCK))
        return scores[:-1]

    def _decode_mask(self, plan: DecodePlan, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (sessions, 1, 64 · most blocks)."""
        name = ("decoding", window)
        if name not in self._masks:
            ends = self.positions[: self._decoding, None] + 1
            places = torch.arange(plan.most * BLOCK, device=ends.device)
            visible = places < ends
            if window is not None:
                visible &= places >= ends - window
            self._masks[name] = additive(visible, dtype)[:, None]
        return self._masks[name]

    def _bias(self, piece: Row, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (new tokens, cached tokens) of one piece."""
        name = (piece.start, piece.end, window)
        if name not in self._masks:
            device = self.store.device
            if piece.end <= LARGEST_TABLE and window is None:
                self._masks[name] = _table(device, dtype)[piece.start : piece.end, : piece.end]
                return self._masks[name]
            here = torch.arange(piece.start, piece.end, device=device)[:, None]
            there = torch.arange(piece.end, device=device)
            visible = there <= here
            if window is not None:
                visible &= there > here - window
            self._masks[name] = additive(visible, dtype)
        return self._masks[name]


def _inserted(packed: Sequence[Row], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Indices of tokens in the packed row, and what stands in place of their embeddings."""
    begin, indices, states = 0, [], []
    for piece in packed:
        if piece.inserted is not None and piece.inserted.states is not None:
            low, high = np.searchsorted(piece.inserted.places, [piece.start, piece.end])
            indices.append(piece.inserted.places[low:high] - piece.start + begin)
            states.append(piece.inserted.states[low:high])
        begin += len(piece.ids)
    if not any(map(len, indices)):
        return None
    return torch.from_numpy(np.concatenate(indices)).to(device), torch.cat(states)


def _axes(packed: Sequence[Row], positions: Tensor) -> Tensor | None:
    """Time, height and width of each token, if a session counts them apart."""
    begin, axes = 0, None
    for piece in packed:
        if piece.inserted is not None and piece.inserted.positions is not None:
            axes = positions.expand(3, -1).clone() if axes is None else axes
            own = torch.from_numpy(piece.inserted.positions[:, piece.start : piece.end])
            axes[:, begin : begin + len(piece.ids)] = own.to(axes.device)
        begin += len(piece.ids)
    return axes


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


def _multiply(left: Tensor, matrices: Tensor, out: Tensor, read: _Read) -> None:
    """out[pair] = left[pair] @ block of the pair, for the pairs of one read: (…, rows, a) @ (…, a, b)."""
    mine = left[read.begin : read.stop]
    count, groups, rows, inner = mine.shape
    if read.owners == 1:
        result = out[read.begin : read.stop].view(count * groups, rows, -1)
        torch.bmm(mine.reshape(count * groups, rows, inner), matrices, out=result)
        return
    distinct = count // read.owners
    together = mine.view(distinct, read.owners, groups, rows, inner).transpose(1, 2)
    result = torch.bmm(together.reshape(distinct * groups, read.owners * rows, inner), matrices)
    apart = result.view(distinct, groups, read.owners, rows, -1).transpose(1, 2)
    out[read.begin : read.stop].view(distinct, read.owners, groups, rows, -1).copy_(apart)


@dataclass(slots=True)
class _Long:
    """Sessions with several new tokens, whose blocks are copied side by side.

    Attributes:
        pieces: each with the place of its session's first token in the copy.
        reads: blocks of arenas. order: the place of each of them in the copy; None: they are in order.
    """

    pieces: list[tuple[Row, int]]
    reads: list[tuple[Arena, slice | Tensor]]
    order: Tensor | None

    def gathered(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (kv heads, 64 · blocks, width)."""
        keys = self._joined([_some(arena.keys[layer], which) for arena, which in self.reads])
        values = self._joined([_some(arena.values[layer], which) for arena, which in self.reads])
        # Contiguous, also if it is one block: kernels give other bits for other strides of tokens.
        return keys.permute(1, 0, 3, 2).flatten(1, 2).contiguous(), values.transpose(0, 1).flatten(1, 2).contiguous()

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if self.order is None:
            return parts[0]
        joined = parts[0].new_empty(len(self.order), *parts[0].shape[1:])
        for part, places in zip(parts, self.order.split([len(part) for part in parts]), strict=True):
            joined.index_copy_(0, places, part)
        return joined


def _longs(sessions: Sequence[Sequence[Row]], store: BlockStore) -> Iterator[_Long]:
    """Put sessions, each with its pieces, into groups whose copies are not large."""
    most = COPIED_BYTES * store.shape.layers * 2 // store.block_bytes
    group: list[Sequence[Row]] = []
    count = 0
    for pieces in sessions:
        blocks = len(pieces[-1].blocks)
        if group and count + blocks > most:
            yield _long(group, store)
            group, count = [], 0
        group.append(pieces)
        count += blocks
    if group:
        yield _long(group, store)


def _long(sessions: Sequence[Sequence[Row]], store: BlockStore) -> _Long:
    blocks: list[int] = []
    pieces: list[tuple[Row, int]] = []
    for mine in sessions:
        pieces += [(piece, BLOCK * len(blocks)) for piece in mine]
        blocks += mine[-1].blocks
    reads: list[tuple[Arena, slice | Tensor]] = []
    order: list[int] = []
    for arena in store.arenas:
        places = [place for place, block in enumerate(blocks) if arena.first <= block < arena.stop]
        if places:
            order += places
            which = [blocks[place] - arena.first for place in places]
            near = which == list(range(which[0], which[0] + len(which)))
            reads.append((arena, slice(which[0], which[-1] + 1) if near else torch.tensor(which, device=store.device)))
    return _Long(pieces, reads, None if len(reads) == 1 else torch.tensor(order, device=store.device))


def _append(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one session's new tokens: query (new, heads, width), keys and values (kv heads, cached, width)."""
    new, heads, width = query.shape
    groups = keys.shape[0]
    # The heads that share a key become the batch: keys are read in place, with stride 0 along it.
    shared = query.view(new, groups, heads // groups, width).permute(2, 1, 0, 3)
    keys, values = (cache.expand(heads // groups, *cache.shape) for cache in (keys, values))
    if softcap is None and sinks is None:
        out = F.scaled_dot_product_attention(shared, keys, values, attn_mask=bias, scale=scaling)
    else:
        scores = torch.matmul(shared, keys.transpose(2, 3)) * scaling
        scores = (scores if softcap is None else softcap * torch.tanh(scores / softcap)) + bias
        weights = scores.softmax(-1)
        if sinks is not None:
            weights = weights * share_beside(scores, sinks.view(groups, -1).t()[..., None, None])
        out = torch.matmul(weights, values)
    return out.permute(2, 1, 0, 3).reshape(new, heads, -1)


def share_beside(scores: Tensor, sinks: Tensor) -> Tensor:
    """The share of the softmax that the keys have beside a sink: Σ exp(score) / (Σ exp(score) + exp(sink)).

    Args:
        scores: (…, keys). sinks: (…, 1), logits.
    """
    return torch.sigmoid(scores.float().logsumexp(-1, keepdim=True) - sinks.float()).to(scores.dtype)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores: 0 where `visible`, else −∞."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


@functools.cache
def _table(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The causal mask of a long context, made once per device and type."""
    visible = torch.ones(LARGEST_TABLE, LARGEST_TABLE, dtype=torch.bool, device=device).tril()
    return additive(visible, dtype)
