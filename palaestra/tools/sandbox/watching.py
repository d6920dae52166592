"""Watch a running program: feed its input, read its output up to a limit, and report why it ended or must be killed."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from palaestra.tools.sandbox.limits import Bounds

Ended = Literal["itself", "time", "output", "cancelled"]
CHUNK = 65536
T = TypeVar("T")


@dataclass(slots=True)
class Captured:
    """The first bytes of one stream, and the number of all its bytes."""

    keep: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        """Keep the bytes for which there is room, and count all of them."""
        self.total += len(chunk)
        self.kept += chunk[: self.keep - len(self.kept)]

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.total > len(self.kept)

    @property
    def text(self) -> str:
        """The kept bytes as text. Bytes that are not UTF-8 are shown as �, and a note counts the bytes dropped."""
        shown = self.kept.decode("utf-8", errors="replace")
        return f"{shown}\n… {self.total - len(self.kept)} more bytes were dropped" if self.truncated else shown


@dataclass(slots=True)
class Watch:
    """Reads `out` and `err` and writes `stdin` until the program ends, a limit is reached, or the caller cancels.

    The object owns the three descriptors, and `close` closes them.
    """

    out_fd: int
    err_fd: int
    stdin_fd: int
    stdin: bytes
    bounds: Bounds
    cancel_fd: int = -1
    patient: bool = False  # True: too much output does not end the program; it is read and dropped
    out: Captured = field(init=False)
    err: Captured = field(init=False)
    streams: dict[int, Captured] = field(init=False)

    def __post_init__(self) -> None:
        self.out, self.err = Captured(self.bounds.max_output), Captured(self.bounds.max_output)
        self.streams = {self.out_fd: self.out, self.err_fd: self.err}
        for fd in (self.out_fd, self.err_fd, self.stdin_fd):
            os.set_blocking(fd, False)

    def until(self, ended_fd: int, *, timeout_s: float) -> Ended:
        """Watch until `ended_fd` becomes readable (a process descriptor, or a pipe that reports the end)."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for fd in (*self.streams, ended_fd, *([self.cancel_fd] if self.cancel_fd >= 0 else [])):
                selector.register(fd, selectors.EVENT_READ)
            if self.stdin_fd >= 0:
                selector.register(self.stdin_fd, selectors.EVENT_WRITE)
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left)}
                for fd in ready & self.streams.keys():
                    if not self._read(fd):
                        selector.unregister(fd)
                if self.stdin_fd in ready and not self._feed():
                    selector.unregister(self.stdin_fd)
                    self._close_stdin()
                if self.cancel_fd in ready:
                    return "cancelled"
                if ended_fd in ready:
                    return "itself"
                if not self.patient and max(stream.total for stream in self.streams.values()) > self.bounds.flood:
                    return "output"
        return "time"

    def timed(self, ended_fd: int, *, timeout_s: float) -> tuple[Ended, float]:
        """Like `until`, with the seconds that it took."""
        begun = time.monotonic()
        return self.until(ended_fd, timeout_s=timeout_s), time.monotonic() - begun

    def drain(self) -> None:
        """Read what is left in the pipes after the program has ended."""
        for fd in self.streams:
            for _ in range(64):  # a pipe holds 64 KiB, rarely 1 MiB; the bound is for a process that still writes
                if not self._read(fd) or not readable(fd, 0.0):
                    break

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.streams:
            os.close(fd)
        self._close_stdin()

    def _read(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        self.streams[fd].add(chunk)
        return bool(chunk)

    def _feed(self) -> bool:
        if not self.stdin:
            return False
        try:
            self.stdin = self.stdin[os.write(self.stdin_fd, self.stdin[:CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # the program has closed its standard input
            return False
        return bool(self.stdin)

    def _close_stdin(self) -> None:
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
            self.stdin_fd = -1


def readable(fd: int, wait_s: float) -> bool:
    """Whether a descriptor can be read, or its other end is closed, within `wait_s` seconds."""
    with selectors.DefaultSelector() as selector:  # `select.select` refuses the numbers from 1024 on
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(wait_s))


async def in_thread(threads: ThreadPoolExecutor, run: Callable[[int], T]) -> T:
    """Call `run(cancel_fd)` in a thread. Cancelling makes the descriptor readable and waits until `run` has ended."""
    cancel_fd, tell_fd = os.pipe()
    work = asyncio.get_running_loop().run_in_executor(threads, run, cancel_fd)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        os.write(tell_fd, b"x")
        await asyncio.wait([work])
        raise
    finally:
        os.close(cancel_fd)
        os.close(tell_fd)
