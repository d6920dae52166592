"""Ends processes with the process that started them, also if that one is killed and cannot say so.

A lifeline is a pipe whose write end only its owner has. When the owner ends in any way, the system closes this end. It
then sends SIGKILL to the process, or to the group of processes, that is tied to the read end. So a process ends that
hangs, that ignores other signals, or that a server of `multiprocessing` has started.

It works on Linux, and does nothing elsewhere. It does not reach processes that leave the group, a program that closes
all files it was given, and containers, which Docker's own server runs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection


class Lifeline:
    """The owner's side. Tie one process or group to it, and call `cut` when it has ended.

    Attributes:
        end: the read end, for the process that is tied.
    """

    def __init__(self) -> None:
        self.end, self._held = Pipe(duplex=False)

    def tie_group(self, leader: int) -> None:
        """End the group of a process with the owner. The process has inherited `end`."""
        with suppress(ProcessLookupError):  # the whole group has ended
            _tie(self.end, -leader)
        self.end.close()

    def cut(self) -> None:
        """Close both ends. What is still tied is killed."""
        self.end.close()
        self._held.close()


def end_with_owner(end: Connection) -> None:
    """End this process with the owner of the lifeline whose read end this is. Keep `end` until then."""
    _tie(end, os.getpid())
    if end.poll():  # the owner has ended before
        os.kill(os.getpid(), signal.SIGKILL)


def _tie(end: Connection, to: int) -> None:
    """Let the system send SIGKILL to process `to`, or to group −`to`, when the other end of a pipe is closed."""
    if sys.platform == "linux":
        number = end.fileno()
        fcntl.fcntl(number, fcntl.F_SETOWN, to)
        fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)
