"""The report: one HTML file in the run folder with the recipe, evaluations, curves and sampled episodes.

The file loads nothing from the network. Its template is `templates/report.html`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.data import StopReason, Trajectory
from palaestra.errors import RunFolderError
from palaestra.evaluation.charts import chart
from palaestra.evaluation.curves import panels_of
from palaestra.evaluation.page import rendered
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import EVALUATIONS, METRICS, RECIPE, REPORT, TIMINGS, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, read

Record = Mapping[str, Any]


def write_report(folder: RunFolder, *, title: str | None = None, transcripts: int = 6, state: str = "") -> Path:
    """Write `report.html` from the logs of the run folder. Sections without data are left out.

    Args:
        title: default: the name of the folder.
        state: how far the run is, in a sentence.
        transcripts: largest number of episodes to show, from the last iteration that has stored any. Usual: 6.

    Returns: the path of the report. It says which of the times, the episodes and the recipe cannot be read.
    Raises: RunFolderError, if another log is damaged or the disk is full.
    """
    metrics, evaluations = read(folder / METRICS), read(folder / EVALUATIONS)
    panels = _panels(evaluations)
    timings, *faults = _read_or_fault(lambda: read(folder / TIMINGS))
    episodes, *further = _read_or_fault(EpisodeLog(folder).read)
    recipe, *more = _read_or_fault(folder.read_recipe) if (folder / RECIPE).exists() else [{}]
    page = rendered(
        "report.html",
        name=title or folder.path.resolve().name,
        state=" ".join(filter(None, [state, *faults, *further, *more])),
        spent=[*_spent(metrics), *_time(timings)],
        panels=panels,
        charts=[chart(panel, x_label="iteration") for panel in panels_of(metrics, evaluations)],
        stops=list(_stops(metrics, panels)),
        episodes=_latest(episodes, transcripts),
        recipe=list(_leaves(recipe, "")),
    )
    return folder.write(REPORT, page)


def _read_or_fault(reads: Callable[[], Any]) -> list[Any]:
    """What is read; if it is damaged, an empty list and a sentence that says so."""
    try:
        return [reads()]
    except RunFolderError as error:
        return [[], f"{Path(error.where).name}: {error.what}"]


def _panels(evaluations: Sequence[Record]) -> dict[str, list[Record]]:
    """Name of a panel → its evaluations. The names of metrics have no prefix `eval/<panel>/`."""
    found: dict[str, list[Record]] = {}
    for line in evaluations:
        for name in line:
            if match := re.fullmatch(r"(eval/(.+)/)tasks", name):
                found.setdefault(match[2], []).append({key.removeprefix(match[1]): line[key] for key in line})
    return found


def _spent(metrics: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """How much of its budget the run has used: numbers and what they count."""
    if metrics:
        for key, label in (
            (STEP, "iterations"),
            (ENVIRONMENT_STEPS, "environment steps"),
            (UPDATES, "optimizer steps"),
        ):
            if metrics[-1].get(key) is not None:
                yield f"{metrics[-1][key]:,}", label


def _time(timings: Sequence[Record]) -> Iterator[tuple[str, str]]:
    seconds = sum(float(value or 0.0) for line in timings for key, value in line.items() if key.startswith("time/"))
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if seconds:
        yield f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s", "of work"


def _stops(metrics: Sequence[Record], panels: Mapping[str, Sequence[Record]]) -> Iterator[tuple[str, str, float]]:
    """For each panel and for training: a stop reason, and the share of the episodes that ended by it."""
    lines = [(f"{panel}, last evaluation", evaluations[-1]) for panel, evaluations in panels.items()]
    lines += [("training, last iteration", metrics[-1])] if metrics else []
    names = sorted(reason.value for reason in StopReason)
    for where, line in lines:
        for name in names:
            if line.get(f"stop/{name}"):
                yield where, name.replace("_", " "), min(float(line[f"stop/{name}"]), 1.0)


def _latest(episodes: Sequence[tuple[int, str, Trajectory]], most: int) -> list[tuple[int, str, Trajectory]]:
    """The first episodes of the last iteration that has stored any."""
    last = max((iteration for iteration, _, _ in episodes), default=0)
    return [each for each in episodes if each[0] == last][:most]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Key, value and origin of each setting. A mapping `{"value": …, "origin": …}` is one; others are sections."""
    if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "origin"}:
        yield path, _text(value["value"]), str(value.get("origin", ""))
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, _text(value), ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
