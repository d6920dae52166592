"""Runs the command `palaestra` as a process that ends with its parent.

Call it as `python -m palaestra.commands.launch.with_parent PID …`. If the parent is killed, the process gets SIGTERM.
A run then stops after its iteration and writes a checkpoint.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
from os import getppid

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when its parent ends. On other systems than Linux, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if getppid() != parent:  # it ended before the call
            sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("palaestra", run_name="__main__")
