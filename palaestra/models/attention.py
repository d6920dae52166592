"""What attention reads of a padded batch, for those who measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

lengths: ContextVar[Sequence[int] | None] = ContextVar("palaestra_lengths", default=None)


@contextmanager
def reading(sample_lengths: Sequence[int]) -> Iterator[None]:
    """Say how long the samples of a forward pass are: what is padded behind them is not measured."""
    token = lengths.set(sample_lengths)
    try:
        yield
    finally:
        lengths.reset(token)
