"""Blocks: store keys and values of 64 ids each, count who holds a block, and find blocks by what they hold.

Blocks lie in arenas. A store that grows adds an arena and never copies one. A block that nobody holds keeps its content
until it is taken again, so a prompt stays shareable after the session that computed it has ended.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.engines.session import Statistics

BLOCK = 64
ALIGNMENT = 64  # bytes, as torch aligns its own memory
# The first arena has this size; each further one has the size of all earlier ones together.
FIRST_BYTES = 64 * 2**20
# Between two updates smaller stores keep their arenas.
KEPT_BYTES = 64 * 2**20
# Logits after so many prompts are kept for sessions that come later. They are as large as the vocabulary.
KEPT_PROMPTS = 64
# Rows of logits in one piece of memory: those that are kept, and some that a step adds before it drops old ones.
KEPT_ROWS = 2 * KEPT_PROMPTS


@dataclass(slots=True, kw_only=True, frozen=True)
class Shape:
    """The shape of a model's keys per token, `layers` × `heads` × `width`, and of its values, of their own width."""

    layers: int
    heads: int
    width: int
    value_width: int

    @property
    def numbers(self) -> int:
        """Numbers of keys and values per token."""
        return self.layers * self.heads * (self.width + self.value_width)


class Prompt(NamedTuple):
    """A computed prompt: its blocks, of which `whole` were computed in whole pieces, and the logits after its end."""

    blocks: tuple[int, ...]
    whole: int
    length: int
    logits: Tensor


class Arena:
    """Blocks `first` to `stop`: per layer keys (blocks, heads, width, 64), and values (…, 64, value width)."""

    def __init__(self, shape: Shape, first: int, count: int, device: torch.device, dtype: torch.dtype) -> None:
        self.first, self.stop = first, first + count
        size = (shape.layers, count, shape.heads)
        # zeros, not empty: numbers beyond a session's end are read and then weighted with 0.
        self.all_keys = _zeros((*size, shape.width, BLOCK), device, dtype)
        self.all_values = _zeros((*size, BLOCK, shape.value_width), device, dtype)
        self.keys, self.values = list(self.all_keys), list(self.all_values)
        # The same with the place in the block second: (blocks, 64, heads, width).
        self.key_rows = [keys.permute(0, 3, 1, 2) for keys in self.keys]
        self.value_rows = [values.transpose(1, 2) for values in self.values]


def _zeros(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros. On the CPU their memory is taken page by page, when it is first used: most of an arena may never be."""
    if device.type != "cpu":
        return torch.zeros(size, device=device, dtype=dtype)
    length = math.prod(size) * dtype.itemsize
    plain = torch.from_numpy(np.zeros(length + ALIGNMENT, np.uint8))
    start = -plain.data_ptr() % ALIGNMENT
    return plain[start : start + length].view(dtype).view(size)


class _Rows:
    """Copies of rows of logits in one piece of memory.

    Copies of their own would lie between the large tensors of forward passes. What these leave free would then be cut
    into pieces in which the next tensors do not fit, and a process that serves for hours would take ever more memory.
    """

    def __init__(self) -> None:
        self._table: Tensor | None = None
        self._free: list[Tensor] = []
        self._given: list[Tensor] = []

    def copy(self, row: Tensor) -> Tensor:
        """A copy of a row. If the memory is full, it is a tensor of its own."""
        if self._table is None:
            self._table = row.new_empty(KEPT_ROWS, *row.shape)
            self._free = list(self._table.unbind())
        return self._free.pop().copy_(row) if self._free else row.clone()

    def give(self, row: Tensor) -> None:
        """This copy is not kept any more. It may be read until `reuse`."""
        if self._table is not None and row.untyped_storage().data_ptr() == self._table.data_ptr():
            self._given.append(row)

    def reuse(self) -> None:
        """Nobody reads the copies that were given back."""
        self._free += self._given
        self._given = []


@dataclass(slots=True)
class _Contents:
    """What a block is known to hold: the chain of ids up to its end, and the prompts that it is part of."""

    chain: bytes | None = None
    prompts: list[bytes] = field(default_factory=list)


class BlockStore:
    """Keys and values of one policy's sessions.

    Args:
        shape: of the model. limit: the most bytes of all arenas; it may change later.
        first_bytes: size of the first arena, at least 16 blocks.
        first_share: least size of the first arena, as a share of the limit. Graphs read one arena only.
        statistics: counts the bytes of blocks that sessions hold.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        limit: int,
        device: torch.device,
        dtype: torch.dtype,
        statistics: Statistics,
        first_bytes: int = FIRST_BYTES,
        first_share: float = 0.0,
    ) -> None:
        self.shape, self.limit, self.device, self.dtype = shape, limit, device, dtype
        self._first, self._first_share = first_bytes, first_share
        self.block_bytes = shape.numbers * BLOCK * dtype.itemsize
        self.arenas: list[Arena] = []
        self._statistics = statistics
        self._holders: list[int] = []
        self._new: deque[int] = deque()
        self._unused: dict[int, None] = {}  # longest unused first
        self._contents: dict[int, _Contents] = {}
        self._chains: dict[bytes, int] = {}
        self._prompts: dict[bytes, Prompt] = {}
        self._rows = _Rows()

    @property
    def capacity(self) -> int:
        """Blocks that exist now."""
        return len(self._holders)

    @property
    def most(self) -> int:
        """The most blocks that may exist."""
        return max(self.capacity, self.limit // self.block_bytes)

    @property
    def size(self) -> int:
        """Bytes of all arenas."""
        return self.capacity * self.block_bytes

    # ---- taking and giving --------------------------------------------------------------------------------
    def take(self) -> int | None:
        """A block for one holder: a new one, else the one that nobody has used for longest; None: the store is full."""
        if not self._new and not self._unused:
            self._grow()
        if self._new:
            block = self._new.popleft()
        elif self._unused:
            block = next(iter(self._unused))
            del self._unused[block]
            self.forget(block)
            arena = self.arena(block)
            for cache in (arena.all_keys, arena.all_values):
                cache[:, block - arena.first] = 0  # a NaN beyond the end would spread through 0 · NaN
        else:
            return None
        self._holders[block] = 1
        self._count(1)
        return block

    def _grow(self) -> None:
        first = self.capacity
        least = max(self._first, int(self._first_share * self.limit))
        count = min(max(first, least // self.block_bytes, 16), self.limit // self.block_bytes - first)
        if count > 0:
            self.arenas.append(Arena(self.shape, first, count, self.device, self.dtype))
            self._holders += [0] * count
            self._new.extend(range(first, first + count))

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each block."""
        for block in blocks:
            if not self._holders[block]:
                del self._unused[block]
                self._count(1)
            self._holders[block] += 1

    def give(self, blocks: Sequence[int]) -> None:
        """One holder less for each block. Of blocks that nobody holds, the last ones are taken again first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._unused[block] = None
                self._count(-1)

    def is_shared(self, block: int) -> bool:
        """Whether it has more than one holder."""
        return self._holders[block] > 1

    def _count(self, change: int) -> None:
        self._statistics.hold(change * self.block_bytes)

    def arena(self, block: int) -> Arena:
        """The arena that holds a block."""
        return next(arena for arena in self.arenas if block < arena.stop)

    def copy(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        old, new = self.arena(source), self.arena(target)
        new.all_keys[:, target - new.first] = old.all_keys[:, source - old.first]
        new.all_values[:, target - new.first] = old.all_values[:, source - old.first]

    def clear(self) -> None:
        """No block is valid or held any more. Free large arenas, so that the trainer has their memory."""
        self._count(-sum(held > 0 for held in self._holders))
        self._contents.clear()
        self._chains.clear()
        self._prompts.clear()
        self._rows = _Rows()
        if self.size > min(KEPT_BYTES, self.limit):
            self.arenas, self._holders = [], []
            self._new.clear()
            self._unused.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        else:
            new = set(self._new)
            self._unused = {block: None for block in range(self.capacity) if block not in new}
            self._holders = [0] * self.capacity

    # ---- what blocks hold ---------------------------------------------------------------------------------
    def note(self, block: int, chain: bytes) -> None:
        """This block was computed in one piece, and so were those before it. `chain` is of all ids up to its end."""
        if chain not in self._chains:
            self._chains[chain] = block
            self._contents.setdefault(block, _Contents()).chain = chain

    def leading(self, chain: Sequence[bytes]) -> list[int]:
        """The blocks that hold the beginning of these ids, as far as they are known."""
        found = []
        for key in chain:
            if key not in self._chains:
                break
            found.append(self._chains[key])
        return found

    def remember(self, key: bytes, prompt: Prompt) -> None:
        """Keep a computed prompt, with a copy of its logits; `key` is of all its ids."""
        if key not in self._prompts:
            self._prompts[key] = prompt._replace(logits=self._rows.copy(prompt.logits))
            for block in prompt.blocks:
                self._contents.setdefault(block, _Contents()).prompts.append(key)

    def find(self, key: bytes) -> Prompt | None:
        """A prompt that was computed."""
        return self._prompts.get(key)

    def forget_old_prompts(self) -> None:
        """Keep the logits of the last prompts only. Those of others are valid until a prompt is remembered again."""
        while len(self._prompts) > KEPT_PROMPTS:
            self._drop(next(iter(self._prompts)))
        self._rows.reuse()

    def forget(self, block: int, *, beyond: int = 0) -> None:
        """This block is about to change, from the session's id number `beyond` on."""
        contents = self._contents.get(block)
        if contents is None:
            return
        if contents.chain is not None:
            del self._chains[contents.chain]
            contents.chain = None
        for key in list(contents.prompts):
            if self._prompts[key].length > beyond:
                self._drop(key)
        if not contents.prompts:
            self._contents.pop(block, None)

    def _drop(self, key: bytes) -> None:
        prompt = self._prompts.pop(key)
        self._rows.give(prompt.logits)
        for block in prompt.blocks:
            self._contents[block].prompts.remove(key)


def chain_of(ids: Sequence[int]) -> list[bytes]:
    """For each whole block of these ids, a hash of all ids up to its end."""
    chain, hashed = [], hashlib.blake2b(digest_size=16)
    numbers = np.asarray(ids, np.int64)
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        hashed.update(numbers[end - BLOCK : end].tobytes())
        chain.append(hashed.digest())
    return chain


def key_of(ids: Sequence[int]) -> bytes:
    """A hash of all ids."""
    return hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=16).digest()
