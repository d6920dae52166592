"""Runs the arms of a comparison: each arm is trained once per seed, and each run has its own process.

A comparison can be stopped and started again: complete runs are not repeated, and stopped ones are resumed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from palaestra.errors import PalaestraError, RunFolderError
from palaestra.recipe.origins import folder_override
from palaestra.store.folder import RESULT, RunFolder
from palaestra.store.lock import is_written


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One run of one arm, with its folder and the arguments of its recipe."""

    arm: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    clones: Path | None = None  # folder in which runs with the same warm start share its weights

    @property
    def complete(self) -> bool:
        """Whether the run has ended. A run writes its result last; a damaged one, or one of another run, is none."""
        folder = RunFolder(self.folder)
        try:
            result = folder.read_json(RESULT)
        except RunFolderError:
            return False
        step = result.get("step") if isinstance(result, dict) else None
        return step is not None and folder.checkpoint_steps()[-1:] in ([], [step])  # checkpoints may be removed

    @property
    def overrides(self) -> list[str]:
        """The overrides that only this run has, beside its arguments."""
        shared = [] if self.clones is None else [folder_override("warm_start.keep", str(self.clones))]
        return [f"seed={self.seed}", folder_override("run", str(self.folder)), "training.threads=1", *shared]

    def command(self) -> list[str]:
        """The command line of the run, which ends with this process. It resumes a run that its folder holds already."""
        resume = ["--resume"] if RunFolder(self.folder).holds_a_run else []
        program = [sys.executable, "-m", "palaestra.commands.launch.with_parent", str(os.getpid())]
        return [*program, "train", *self.arguments, *self.overrides, "--quiet", *resume]


def run_all(runs: Sequence[ArmRun], *, parallel: int, say: Callable[[str], None]) -> None:
    """Run those that are not complete, `parallel` at a time.

    A run into whose folder another process still trains, such as one of a comparison that was killed, is begun when
    that process has ended.

    Args:
        say: gets a line when a run begins and when it has ended.

    Raises: PalaestraError, with the output of the first run that failed; the others are stopped.
    """
    waiting = [run for run in runs if not run.complete]
    say(f"{len(runs) - len(waiting)} of {len(runs)} runs are complete")
    told: set[Path] = set()
    going: list[_Going] = []
    try:
        while waiting or going:
            while len(going) < parallel and (run := _next(waiting, told, say)) is not None:
                say(f"{run.arm}, seed {run.seed}: begins in {run.folder}")
                going.append(_Going(run))
            time.sleep(0.2)
            for one in [one for one in going if one.process.poll() is not None]:
                going.remove(one)
                _close(one, say)
    finally:
        for one in going:
            one.process.terminate()
        for one in going:
            one.process.wait()


def _next(waiting: list[ArmRun], told: set[Path], say: Callable[[str], None]) -> ArmRun | None:
    """Take the first run that can begin; None, if there is none. Runs that have become complete are taken out."""
    for run in list(waiting):
        if run.complete or not is_written(run.folder):
            waiting.remove(run)
            if not run.complete:
                return run
        elif run.folder not in told:
            told.add(run.folder)
            say(f"{run.arm}, seed {run.seed}: waits for another process, which trains into {run.folder}")
    return None


class _Going:
    """A run in its process. The output goes to a file: a full pipe that nobody reads would stop the process."""

    def __init__(self, run: ArmRun) -> None:
        self.run = run
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115 - open as long as the process
        surroundings = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        self.process = subprocess.Popen(
            run.command(), stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, env=surroundings
        )

    def output(self) -> str:
        """All that the process has written."""
        with self._output as file:
            file.seek(0)
            return file.read().decode(errors="replace").strip()


def _close(one: _Going, say: Callable[[str], None]) -> None:
    run, output = one.run, one.output()
    if one.process.returncode != 0:
        raise PalaestraError(
            where=f"arm {run.arm}, seed {run.seed}",
            what=f"its run ended with exit code {one.process.returncode}:\n{output[-2000:]}",
            remedy="Correct the cause and give the same command again. Complete runs are kept.",
        )
    say(f"{run.arm}, seed {run.seed}: {(output.splitlines() or ['it has ended'])[-1]}")
