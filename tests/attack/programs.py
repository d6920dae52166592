"""The command line in processes that can be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from palaestra.commands import cli
from palaestra.store.folder import RunFolder

SAID = "said.txt"  # both outputs of the last program
LONGEST = 600.0  # seconds of a program that nobody kills


@dataclass(frozen=True)
class Program:
    """`palaestra` in a folder. `layers` are those of the recipe that `train` gets."""

    folder: Path
    layers: tuple[str, ...] = ()

    def train(self, run: str, *, apart: bool = False) -> int:
        """Begin a run, or resume it if it has begun. Returns the id of the process and of its group."""
        resume = ["--resume"] if RunFolder(self.folder / run).holds_a_run else []  # else a kill left an empty one
        return self.start("train", *self.layers, f"run={run}", "--quiet", *resume, apart=apart)

    def start(self, *arguments: str, apart: bool = False) -> int:
        """Run a command line in a fork of this process; `apart`: in a new Python. Returns as `train`."""
        sys.stdout.flush(), sys.stderr.flush()
        child = os.fork()
        if not child:
            status = 70
            try:
                os.setpgid(0, 0)
                status = self._become(arguments, apart)
            finally:
                os._exit(status)
        try:
            os.setpgid(child, child)
        except OSError:  # it runs another program already, and has its group, or is over
            pass
        return child

    def _become(self, arguments: tuple[str, ...], apart: bool) -> int:
        """What the child does."""
        said = os.open(self.folder / SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        os.chdir(self.folder)
        if apart:
            root = str(Path(__file__).parents[2])
            given = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
            os.execve(sys.executable, [sys.executable, "-m", "palaestra", *arguments], given)
        sys.argv = ["palaestra", *arguments]
        with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
            try:
                return cli._run()
            except BaseException:
                traceback.print_exc()
                return 70

    def end(self, child: int, *, after: float | None = None) -> bool:
        """Wait for a process; kill its group `after` seconds. Returns whether it was killed.

        Raises: AssertionError, if it ends by itself with another status than 0, prints a traceback, or never ends.
        """
        deadline = time.monotonic() + (LONGEST if after is None else after)
        try:
            done, status = os.waitpid(child, os.WNOHANG)
            while not done and time.monotonic() < deadline:
                time.sleep(0.001)
                done, status = os.waitpid(child, os.WNOHANG)
        except BaseException:  # this process is asked to end
            os.killpg(child, signal.SIGKILL)
            raise
        if not done:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        code, said = os.waitstatus_to_exitcode(status), self.said()
        assert "Traceback" not in said and code in (0, -signal.SIGKILL), (code, said)
        assert after is not None or code == 0, f"it did not end within {LONGEST:.0f} seconds: {said}"
        return code == -signal.SIGKILL

    def said(self) -> str:
        """What the last program wrote to its outputs."""
        file = self.folder / SAID
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
