"""The lengths of the samples in a padded batch, for code that measures attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

lengths: ContextVar[Sequence[int] | None] = ContextVar("palaestra_lengths", default=None)


@contextmanager
def reading(sample_lengths: Sequence[int]) -> Iterator[None]:
    """Set the lengths of the samples in a forward pass, so that padding is not measured."""
    token = lengths.set(sample_lengths)
    try:
        yield
    finally:
        lengths.reset(token)
