"""Slots: store the keys and values of sessions, and find a slot that starts with an already computed prompt.

One slot is one row of two tensors (layers, slots, key/value heads, length, head width). A freed slot keeps
its content until another session takes it, so a prompt stays shareable after the session that computed it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_CAPACITY = 16


@dataclass(slots=True, kw_only=True, frozen=True)
class Shape:
    """The shape of a model's keys, and of its values, per token: `layers` × `heads` × `width`."""

    layers: int
    heads: int
    width: int


class SlotStore:
    """Keys and values of one policy's sessions.

    Args:
        shape: of the model.
        length: most ids per slot; a multiple of 64.
        limit: most slots.
    """

    def __init__(self, *, shape: Shape, length: int, limit: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.length, self.limit = shape, length, limit
        self.keys = torch.zeros(shape.layers, 0, shape.heads, length, shape.width, device=device, dtype=dtype)
        self.values = self.keys.clone()
        self._free: dict[int, None] = {}  # oldest first
        self._prompts: dict[int, list[tuple[int, ...]]] = {}  # each the beginning of the next
        self._holders: dict[tuple[int, ...], dict[int, Tensor]] = {}

    @property
    def capacity(self) -> int:
        """Slots that exist now."""
        return self.keys.shape[1]

    def take(self) -> int | None:
        """A free slot, the one that was freed first; None if `limit` slots are taken."""
        if not self._free and self.capacity < self.limit:
            self._grow(min(max(2 * self.capacity, FIRST_CAPACITY), self.limit))
        if not self._free:
            return None
        slot = next(iter(self._free))
        del self._free[slot]
        self.forget(slot)
        return slot

    def _grow(self, capacity: int) -> None:
        self._free.update(dict.fromkeys(range(self.capacity, capacity)))
        self.keys, self.values = (_enlarged(old, capacity) for old in (self.keys, self.values))

    def give(self, slot: int) -> None:
        """Free a slot; what it holds stays shareable until it is taken again."""
        self._free[slot] = None

    def wipe(self, slot: int) -> None:
        """Overwrite what a slot holds with zeros: a NaN beyond the end would spread through 0 · NaN."""
        self.forget(slot)
        self.keys[:, slot] = 0
        self.values[:, slot] = 0

    # ---- shared prompts -----------------------------------------------------------------------------------
    def remember(self, slot: int, prompt: tuple[int, ...], logits: Tensor) -> None:
        """Note that a slot begins with this prompt, and the logits (vocabulary,) after its last id."""
        self._prompts.setdefault(slot, []).append(prompt)
        self._holders.setdefault(prompt, {})[slot] = logits

    def find(self, prompt: tuple[int, ...]) -> tuple[int, Tensor] | None:
        """A slot that begins with this prompt, and the logits after it."""
        holders = self._holders.get(prompt)
        return next(iter(holders.items())) if holders else None

    def forget_all(self) -> None:
        """No slot's content is valid any more: the weights changed."""
        self._prompts.clear()
        self._holders.clear()

    def forget(self, slot: int, *, beyond: int = 0) -> None:
        """This slot's content is about to change from its id number `beyond` on."""
        prompts = self._prompts.get(slot)
        while prompts and len(prompts[-1]) > beyond:
            prompt = prompts.pop()
            holders = self._holders[prompt]
            del holders[slot]
            if not holders:
                del self._holders[prompt]
        if prompts is not None and not prompts:
            del self._prompts[slot]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` keys and values of one slot into others."""
        if targets:
            where = torch.tensor(targets, device=self.keys.device)
            for cache in (self.keys, self.values):
                cache[:, where, :, :length] = cache[:, source : source + 1, :, :length]


def _enlarged(old: Tensor, capacity: int) -> Tensor:
    layers, count, *rest = old.shape
    # zeros, not empty: keys and values beyond a session's end are read and then weighted with 0.
    new = old.new_zeros(layers, capacity, *rest)
    new[:, :count] = old
    return new
