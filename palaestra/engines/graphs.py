"""Steps in which all sessions decode, recorded as CUDA graphs and replayed.

A GPU computes such a step of a small model faster than Python can ask for it, kernel by kernel. A graph is asked for
once per step. Its shapes and addresses are fixed: sessions and blocks are padded to the next size, a table says which
blocks a session reads, and keys and values of these blocks are copied side by side in each layer. Steps in which a
session reads a prompt are computed as usual. A step is a few copies of memory longer than without padding, so large
models, whose kernels take longer than Python, gain little.

On the first recording the numbers are compared with those of a usual step. If they differ, or if the model cannot be
recorded, a warning says why, and no step is recorded any more.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.engines.attention import Batch, Packed, Row, additive, share_beside
from palaestra.engines.blocks import BLOCK, BlockStore

Function = Callable[[], Tensor]
Record = Callable[[Function], tuple[Callable[[], object], Tensor]]  # what replays the function, and its result
LOG = logging.getLogger("palaestra.engines")
# Steps of one size that are computed as usual before that size is recorded. A recording takes as long as two of them.
PATIENCE = 3
# The most bytes of keys and values that a recorded step copies. Copies of more take longer than the calls they save.
COPIED_BYTES = 4 * 2**30
# The largest difference of log-probabilities on the first recording, in float32 and in other types.
TOLERANCES = 1e-3, 0.5


class FixedStep:
    """The input of a forward pass in which `sessions` decode, each with at most `blocks` blocks. Its tensors stay.

    Attributes: as those of `Batch`. The table (sessions · blocks,) has the blocks of each session in order.
    """

    inserted = None
    axes = None

    def __init__(self, sessions: int, blocks: int, store: BlockStore) -> None:
        self._store, self._sessions, self._blocks = store, sessions, blocks
        self._input = torch.zeros(sessions * (2 + blocks), dtype=torch.int64, device=store.device)
        self.ids, self.positions, self._table = self._input.split([sessions, sessions, sessions * blocks])
        self.last = torch.arange(sessions, device=store.device)
        self._places = torch.arange(blocks * BLOCK, device=store.device)
        self._where: tuple[Tensor, Tensor]  # block and place in it of each new token
        self._masks: dict[int | None, Tensor] = {}

    def fill(self, rows: Sequence[Row]) -> None:
        """Read the next ids of these sessions. Rows that are missing repeat the last one, which changes no number."""
        padded = [*rows, *[rows[-1]] * (self._sessions - len(rows))]
        table = np.empty((self._sessions, self._blocks), np.int64)
        for number, row in enumerate(padded):
            table[number] = row.blocks[0]
            table[number, : len(row.blocks)] = row.blocks
        ids, starts = ([row.ids[0] for row in padded], [row.start for row in padded])
        self._input.copy_(torch.from_numpy(np.concatenate([np.array(ids), np.array(starts), table.ravel()])))

    def begin(self) -> None:
        """Forget what the last pass derived from its input."""
        table = self._table.view(self._sessions, self._blocks)
        block = table.gather(1, (self.positions // BLOCK)[:, None])[:, 0]
        self._where = block, self.positions % BLOCK
        self._masks.clear()

    def padded_last(self) -> Tensor:
        """`last`: there is no other padding."""
        return self.last

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
        """As `Batch.attend`: store new keys and values, and give the attention of `query` (sessions, heads, width)."""
        arena, shape, write = self._store.arenas[0], self._store.shape, self._where
        arena.key_rows[layer].index_put_(write, key)
        arena.value_rows[layer].index_put_(write, value)
        sessions, heads, width = query.shape
        groups, share, most = shape.heads, heads // shape.heads, self._blocks
        keys = arena.keys[layer].index_select(0, self._table).view(sessions, most, groups, width, BLOCK)
        values = arena.values[layer].index_select(0, self._table).view(sessions, most, groups, BLOCK, shape.value_width)
        scores = torch.matmul((query * scaling).reshape(sessions, 1, groups, share, width), keys)
        scores = scores.permute(0, 2, 3, 1, 4).reshape(sessions, groups, share, most * BLOCK)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores + self._mask(window, query.dtype)
        weights = scores.softmax(-1)
        if sinks is not None:
            weights = weights * share_beside(scores, sinks.view(groups, share, 1))
        weights = weights.view(sessions, groups, share, most, BLOCK).permute(0, 3, 1, 2, 4)
        return torch.matmul(weights, values).sum(1).reshape(sessions, heads, shape.value_width)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (sessions, 1, 1, 64 · blocks)."""
        if window not in self._masks:
            ends = self.positions[:, None] + 1
            visible = self._places < ends
            if window is not None:
                visible &= self._places >= ends - window
            self._masks[window] = additive(visible, dtype)[:, None, None]
        return self._masks[window]


class Recording(NamedTuple):
    """A recorded step.

    Attributes:
        step: its input. replay: computes it again. logits: (sessions, vocabulary), where it leaves them.
    """

    step: FixedStep
    replay: Callable[[], object]
    logits: Tensor


class Recorder:
    """Records what a GPU is asked for. The recordings of one recorder share their memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]

    def __call__(self, function: Function) -> tuple[Callable[[], object], Tensor]:
        """Record a function that asks the device for work, and waits for nothing.

        Returns: what replays it, and the tensor that the function returned, which a replay fills.

        Raises: RuntimeError, if the function waits for the device, or if memory is missing.
        """
        with torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                with _refused_waiting():
                    function()  # what is made once, such as the memory of matrix products, is not recorded
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    logits = function()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        return graph.replay, logits


@contextmanager
def _refused_waiting() -> Iterator[None]:
    """A context in which operations that wait for the device raise RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it finds most of them, and not all
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def can_record(device: torch.device) -> bool:
    """Whether steps on this device can be recorded."""
    return device.type == "cuda"


class DecodeGraphs:
    """The recorded steps of one policy.

    Args:
        forward: the forward pass. store: the blocks of the policy's sessions.
    """

    def __init__(self, forward: Callable[[Packed], Tensor], store: BlockStore) -> None:
        self._forward, self._store = forward, store
        self._usable, self._compared = True, False
        self.forget()

    def forget(self) -> None:
        """Free all recordings: weights or blocks have moved."""
        self._recordings: dict[tuple[int, int], Recording] = {}
        self._seen: Counter[tuple[int, int]] = Counter()
        self._record: Record | None = None

    def compute(self, rows: Sequence[Row]) -> Tensor | None:
        """Logits (rows, vocabulary) by a replayed step; None, if the step is to be computed as usual."""
        size = self._size(rows)
        if size is None:
            return None
        if size not in self._recordings:
            self._seen[size] += 1
            if self._seen[size] <= PATIENCE or not self._recorded(size, rows):
                return None
        step, replay, logits = self._recordings[size]
        step.fill(rows)
        replay()
        return logits[: len(rows)].clone()  # the next replay writes into the same memory

    def _size(self, rows: Sequence[Row]) -> tuple[int, int] | None:
        """Sessions and blocks, padded; None, if such a step cannot be recorded."""
        if not self._usable or len(self._store.arenas) != 1:
            return None
        if any(len(row.ids) != 1 or row.inserted is not None for row in rows):
            return None
        sessions, blocks = padded(len(rows), least=16), padded(max(len(row.blocks) for row in rows), least=1)
        return None if sessions * blocks * self._store.block_bytes > COPIED_BYTES else (sessions, blocks)

    def _recorded(self, size: tuple[int, int], rows: Sequence[Row]) -> bool:
        """Record a step of this size. Returns False, if that is not possible."""
        step = FixedStep(*size, self._store)
        step.fill(rows)

        def function() -> Tensor:
            step.begin()
            return self._forward(step)

        try:
            self._record = self._record or Recorder(self._store.device)
            replay, logits = self._record(function)
        except Exception as error:  # of a device or an architecture; the usual step would report a fault of the model
            return self._stop(f"recording one failed: {type(error).__name__}: {error}")
        if not self._compared:
            replay()
            expected = self._forward(Batch(rows, self._store)).float().log_softmax(-1)
            difference = float((logits[: len(rows)].float().log_softmax(-1) - expected).abs().max())
            if difference > TOLERANCES[self._store.dtype != torch.float32]:
                return self._stop(f"log-probabilities of a replayed one differ by {difference:.3g}")
            self._compared = True
        self._recordings[size] = Recording(step, replay, logits)
        return True

    def _stop(self, why: str) -> bool:
        self.forget()
        self._usable = False
        LOG.warning("in-process engine: steps are not replayed as CUDA graphs, so they may take longer: %s", why)
        return False


def padded(count: int, *, least: int) -> int:
    """The next of `least` · (1, 1.5, 2, 3, 4, 6, 8, …) that is whole and at least `count`."""
    size = least
    while size < count:
        power = 1 << (size.bit_length() - 1)
        size = 2 * power if size != power or power == 1 else size + power // 2
    return size
