"""The metrics log: one line an iteration, one line an evaluation.

Knows which names are measured in seconds. Knows nothing of what the others mean.

What a run computes goes to `metrics.jsonl` and `evaluations.jsonl`: two equal runs write equal bytes.
What a clock measures goes to `timings.jsonl`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.store.folder import EVALUATIONS, METRICS, TIMINGS, RunFolder
from palaestra.store.json_text import plain
from palaestra.store.lines import STEP, JsonLines

ENVIRONMENT_STEPS = "environment_steps"  # acts in the environment so far, over all episodes
UPDATES = "updates"  # optimizer steps so far
MEASURED = frozenset({"time", "speed"})


def is_measured(name: str) -> bool:
    """Whether a metric comes from a clock: `time/rollout`, `speed/tokens`, `policy/solver/time/update`."""
    return not MEASURED.isdisjoint(name.split("/")[:-1])


class MetricsLog:
    """The three logs of a run folder, append only."""

    def __init__(self, folder: RunFolder | str | os.PathLike[str]) -> None:
        path = folder.path if isinstance(folder, RunFolder) else Path(folder)
        self.metrics = JsonLines(path / METRICS)
        self.timings = JsonLines(path / TIMINGS)
        self.evaluations = JsonLines(path / EVALUATIONS)
        self._last: dict[str, Any] | None = None  # the newest evaluation; None: not read yet

    @property
    def last_evaluation(self) -> dict[str, Any]:
        """The newest evaluation as it stands in the log, {} before the first. The file is read at most once for it."""
        if self._last is None:
            self._last = next(iter(self.evaluations.read()[-1:]), {})
        return self._last

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """One iteration. Numbers of numpy and torch are taken; those that are not finite are written as null.

        `compare` reads `environment_steps` and `updates`, both counted from the start of the run.
        """
        self._append(self.metrics, step, values)

    def append_evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """One evaluation after iteration `step`; 0 is before the first."""
        self._last = plain(self._append(self.evaluations, step, values))

    def truncate(self, step: int) -> None:
        """Forget what came after iteration `step`, when a run resumes from its checkpoint."""
        for log in (self.metrics, self.timings, self.evaluations):
            log.truncate(step)
        self._last = None

    def sync(self) -> None:
        """Wait until the lines are on the disk. Not needed against a kill, only against a power cut."""
        for log in (self.metrics, self.timings, self.evaluations):
            log.sync()

    def _append(self, log: JsonLines, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write one line, and what was measured to its own; returns the record of the first."""
        measured = {name: value for name, value in values.items() if is_measured(name)}
        record = {name: value for name, value in values.items() if name not in measured} | {STEP: step}
        log.append(record)
        if measured:
            self.timings.append(measured | {STEP: step})
        return record


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of one JSON-lines file, or of `metrics.jsonl` in a folder; a half-written last line is left out."""
    place = Path(path)
    return JsonLines(place / METRICS if place.is_dir() else place).read()
