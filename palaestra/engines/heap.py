"""Gives memory that this process has freed back to the system.

The C library keeps it otherwise, in pieces that seldom fit tensors of other lengths. A process that reads batches of
many lengths then holds several times what it uses.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

GROWTH = 2**29  # bytes


def give_back() -> None:
    """Let the system have the memory that this process has freed."""
    trim = _trim()
    if trim is not None:
        trim(0)


class Growth:
    """Gives memory back whenever a loop has grown by `most` bytes. After every pass it would cost a fifth more time.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = GROWTH) -> None:
        self._most = most
        self._base: int | None = None  # bytes that the process held after the first pass since memory was given back

    def bound(self) -> None:
        """Call this after each pass."""
        held = resident_bytes()
        if self._base is None:
            self._base = held
        elif held > self._base + self._most:
            give_back()
            self._base = None


def resident_bytes() -> int:
    """Memory that this process holds; 0, where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


@functools.cache
def _trim() -> Any:
    """The function `malloc_trim` of glibc; None on other systems."""
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
