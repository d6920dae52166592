"""Decides when a run writes checkpoints and its report, so that a kill loses little and writing costs little."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from palaestra.data.ranks import Ranks
from palaestra.errors import PalaestraError
from palaestra.evaluation.report import write_report
from palaestra.store.checksums import GrowingSum
from palaestra.store.folder import TRAJECTORIES, RunFolder
from palaestra.store.metrics import MetricsLog
from palaestra.training.checkpoint import RunState, give_slices, save_checkpoint
from palaestra.training.settings import TrainingSettings

CHECKPOINT = (60.0, 20.0)  # between two: at least so many seconds, and so many times as long as the last one took
REPORT = (20.0, 50.0)  # the same of reports


@dataclass(slots=True)
class Pace:
    """How often something is written.

    Attributes:
        seconds: the least time between two. share: their distance is at least this many times the time of the last one.
        clock: gives seconds.
    """

    seconds: float
    share: float
    clock: Callable[[], float] = time.monotonic
    _last: float = field(init=False)
    _took: float = 0.0

    def __post_init__(self) -> None:
        self._last = self.clock()

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return self.clock() - self._last >= max(self.seconds, self.share * self._took)

    def run(self, write: Callable[[], object]) -> None:
        """Write now, and note how long it takes."""
        began = self.clock()
        write()
        self._last = self.clock()
        self._took = self._last - began


class Keeper:
    """Writes the checkpoints of a run and keeps its report current.

    With several processes, the first one writes.

    Attributes:
        saved: number of iterations in the newest checkpoint; −1 before the first.
    """

    def __init__(
        self, folder: RunFolder, state: RunState, log: MetricsLog, settings: TrainingSettings, ranks: Ranks
    ) -> None:
        self._folder, self._state, self._log, self._settings, self._ranks = folder, state, log, settings, ranks
        self._checkpoints, self._reports = Pace(*CHECKPOINT), Pace(*REPORT)
        self._episodes = GrowingSum(folder / TRAJECTORIES)
        self.saved = -1

    def due(self, step: int, *, ended: bool) -> bool:
        """Whether a checkpoint is wanted now: by `training.checkpoint_every`, or else by time, and at the end."""
        if self.saved == step or ended:
            return self.saved < step
        if self._settings.checkpoint_every:
            return step % self._settings.checkpoint_every == 0
        return self._ranks.texts("due" if self._checkpoints.due else "")[0] == "due"

    def save(self, step: int, counters: Mapping[str, float]) -> None:
        """Write a checkpoint of the state after iteration `step`. Raises: RunFolderError, as on a full disk."""
        self._log.sync()
        if self._ranks.main:
            self._checkpoints.run(lambda: self._write(step, counters))
        elif self._ranks.in_step:
            give_slices(self._state)
        self.saved = step

    def _write(self, step: int, counters: Mapping[str, float]) -> None:
        save_checkpoint(
            self._folder,
            step,
            self._state,
            counters=counters,
            keep=self._settings.keep_checkpoints,
            logs={TRAJECTORIES: self._episodes.now()},
        )

    def report(self, step: int, *, now: bool = False, ended: str = "") -> None:
        """Write the report, if it is time. A report that cannot be written ends no run.

        Args:
            now: write in any case.
            ended: how the run ended, if it did not reach its last iteration.
        """
        if self._ranks.main and (now or self._reports.due):
            said = f"Iteration {step} of {self._settings.iterations}{ended or ', still running'}."
            try:
                self._reports.run(lambda: write_report(self._folder, state=said))
            except PalaestraError:
                pass
