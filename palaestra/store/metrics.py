"""The logs of metrics, with one line for each iteration and one for each evaluation.

Values that a run computes go to `metrics.jsonl` and `evaluations.jsonl`, so two equal runs write equal bytes. Values
that depend on the machine, such as times and the engine's use of memory, go to `timings.jsonl`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.store.folder import EVALUATIONS, METRICS, TIMINGS, RunFolder
from palaestra.store.json_text import plain
from palaestra.store.lines import STEP, JsonLines, damaged

ENVIRONMENT_STEPS = "environment_steps"  # number of acts in the environment so far, over all episodes
UPDATES = "updates"  # number of optimizer steps so far
MEASURED = frozenset({"time", "speed"})


def is_measured(name: str) -> bool:
    """Whether a metric depends on the machine: `time/rollout`, `policy/solver/time/update`, `engine/evictions`."""
    return name.startswith("engine/") or not MEASURED.isdisjoint(name.split("/")[:-1])


class MetricsLog:
    """The three logs of a run folder: metrics, timings and evaluations."""

    def __init__(self, folder: RunFolder | str | os.PathLike[str]) -> None:
        path = folder.path if isinstance(folder, RunFolder) else Path(folder)
        self.metrics = JsonLines(path / METRICS)
        self.timings = JsonLines(path / TIMINGS)
        self.evaluations = JsonLines(path / EVALUATIONS)
        self._last: dict[str, Any] | None = None  # the newest evaluation; None if it was not read yet

    @property
    def last_evaluation(self) -> dict[str, Any]:
        """The newest evaluation as the log has it, {} before the first. The file is read at most once for it."""
        if self._last is None:
            self._last = next(iter(self.evaluations.read()[-1:]), {})
        return self._last

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the metrics of one iteration. Values may be numbers of numpy or torch; NaN and infinity become null.

        `compare` reads `environment_steps` and `updates`, both counted from the start of the run.
        """
        self._append(self.metrics, step, values)

    def append_evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the evaluation after iteration `step`. The evaluation before the first iteration has step 0."""
        self._last = plain(self._append(self.evaluations, step, values))

    def truncate(self, step: int) -> str:
        """Remove the lines after iteration `step`, when a run resumes from its checkpoint.

        Returns: what `timings.jsonl` lacks, whose damage ends no run; empty, if it lacks nothing.
        Raises: RunFolderError, if a line of another log is damaged.
        """
        self.metrics.truncate(step)
        self.evaluations.truncate(step)
        self._last = None
        fault = self.timings.salvage(step, lambda _: True)
        if not fault:
            timed = {line[STEP] for line in self.timings.read()}
            lacking = sum(line[STEP] not in timed for line in self.metrics.read())
            fault = f"it lacks {lacking} iterations" if lacking else ""
        return f"{TIMINGS}: {fault}" if fault else ""

    def sync(self) -> None:
        """Wait until the lines are on the disk. Only a power cut could lose them before that, a kill could not."""
        for log in (self.metrics, self.timings, self.evaluations):
            log.sync()

    def _append(self, log: JsonLines, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write one line, and another one with the measured values. Returns the record of the first line."""
        measured = {name: value for name, value in values.items() if is_measured(name)}
        record = {name: value for name, value in values.items() if name not in measured} | {STEP: step}
        log.append(record)
        if measured:
            self.timings.append(measured | {STEP: step})
        return record


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a log, or of `metrics.jsonl` in a folder. A half-written last line is left out.

    Raises: RunFolderError, if a line is damaged or has no iteration.
    """
    place = Path(path)
    place = place / METRICS if place.is_dir() else place
    records = JsonLines(place).read()
    for number, record in enumerate(records, start=1):
        if not isinstance(record.get(STEP), int):
            raise damaged(place, number, f"`{STEP}` is no whole number")
    return records
