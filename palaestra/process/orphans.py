"""Ends processes that would otherwise outlive the process that started them, also where SIGKILL ends that one.

`killed_with` is for a process that runs our code. `Guard` is for the program of somebody else. Neither depends on the
thread that starts a process, as `PR_SET_PDEATHSIG` does, whose signal comes when that thread ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys

# A shell in a session of its own. The first line that it reads names a process group. Its input ends when the process
# that started it ends. It then sends SIGTERM to the group, waits for its end, and sends SIGKILL.
GUARD = """trap "" HUP INT TERM
read -r group || exit
read -r end
kill -s TERM -- "-$group" || exit
while [ "$1" -gt "${waited:=0}" ] && kill -s 0 -- "-$group"; do sleep 0.2; waited=$((waited + 1)); done
kill -s KILL -- "-$group"
"""


def killed_with(pipe: int) -> None:
    """Let the kernel kill this process when the writing end of a pipe is closed. Do nothing outside Linux.

    The process that must not be outlived keeps the writing end and writes nothing. Its end closes the pipe. SIGKILL
    then arrives even if this process hangs in a call of C and no thread of Python can run.

    Not covered: processes that this one has started; forked copies of the other process, which keep the pipe open.

    Args:
        pipe: descriptor of the reading end. It must stay open.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # a system that only resembles Linux
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    closed = select.poll()
    closed.register(pipe, select.POLLIN)
    if closed.poll(0):  # before the calls above
        os.kill(os.getpid(), signal.SIGKILL)


class Guard:
    """Ends a process group if this process ends while the guard is in use. It is a small shell.

        with Guard(grace_s=3.0) as guard:
            process = subprocess.Popen(command, start_new_session=True)
            guard.watch(process.pid)
            process.wait()

    Not covered: processes that have left the group, as daemons do; the moment between the start of the group and
    `watch`; forked copies of this process, which keep the guard waiting; a guard that is killed itself.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL. Higher: programs can tidy up. Lower: stubborn ones end sooner.

    Raises: OSError, if the shell cannot be started.
    """

    def __init__(self, *, grace_s: float) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", str(round(grace_s / 0.2))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # what ends the group of this process must not end it
        )

    def watch(self, group: int) -> None:
        """Name the group: the id of the process that leads it. Call it once."""
        assert self._shell.stdin
        with contextlib.suppress(OSError):  # somebody has killed the guard
            self._shell.stdin.write(f"{group}\n".encode())

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *error: object) -> None:
        """Dismiss the guard. The group goes on if it still runs."""
        self._shell.kill()  # before its input ends
        with self._shell:
            pass
