"""The report: one HTML file in the run folder with the recipe, evaluations, curves and sampled episodes.

Knows the files of a run folder. Knows nothing of a run in progress. The file loads nothing from the network.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.data import Step, StopReason, Trajectory
from palaestra.evaluation.charts import chart
from palaestra.evaluation.curves import panels_of
from palaestra.evaluation.page import page, section, table, tile
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import EVALUATIONS, METRICS, RECIPE, REPORT, TIMINGS, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import ENVIRONMENT_STEPS, UPDATES, read

Record = Mapping[str, Any]


def write_report(folder: RunFolder, *, title: str | None = None, transcripts: int = 6) -> Path:
    """Write `report.html` from what the run folder holds; parts without data are left out.

    Args:
        title: default: the folder's name.
        transcripts: most episodes shown, from the last iteration that kept any. Usual: 6.

    Raises: RunFolderError, if a log is damaged or the disk is full.
    """
    metrics, evaluations = read(folder / METRICS), read(folder / EVALUATIONS)
    name = title or folder.path.resolve().name
    recipe = folder.read_json(RECIPE) if (folder / RECIPE).exists() else {}
    sections = [
        _head(name, metrics, evaluations, read(folder / TIMINGS)),
        section("Evaluations", _evaluations(evaluations)),
        section("Curves", _charts(metrics, evaluations)),
        section("Why episodes ended", _stops(metrics, evaluations)),
        section("Sampled episodes", _transcripts(EpisodeLog(folder).read(), transcripts)),
        section("Recipe", _recipe(recipe)),
    ]
    return folder.write(REPORT, page(name, sections))


# ---- head -------------------------------------------------------------------------------------------------
def _head(name: str, metrics: Sequence[Record], evaluations: Sequence[Record], timings: Sequence[Record]) -> str:
    tiles = [_headline(panel, lines) for panel, lines in _panels(evaluations).items()]
    if metrics:
        last = metrics[-1]
        tiles.append(tile(f"{last[STEP]:,}", "iterations"))
        for key, label in ((ENVIRONMENT_STEPS, "environment steps"), (UPDATES, "optimizer steps")):
            if last.get(key) is not None:
                tiles.append(tile(f"{last[key]:,}", label))
    seconds = sum(float(value or 0.0) for line in timings for key, value in line.items() if key.startswith("time/"))
    if seconds:
        tiles.append(tile(_duration(seconds), "of work"))
    return f'<h1>{html.escape(name)}</h1><p class="soft">A Palaestra run.</p><div class="tiles">{"".join(tiles)}</div>'


def _headline(panel: str, lines: Sequence[Record]) -> str:
    measure = "success" if f"eval/{panel}/success" in lines[-1] else "return"
    first, last = (line.get(f"eval/{panel}/{measure}") for line in (lines[0], lines[-1]))
    value = _number(last) if len(lines) == 1 else f"{_number(first)} → {_number(last)}"
    return tile(value, f"{measure} on {_number(lines[-1].get(f'eval/{panel}/tasks'))} held-out tasks of {panel}")


def _panels(evaluations: Sequence[Record]) -> dict[str, list[Record]]:
    """Evaluation lines by the name of their panel."""
    found: dict[str, list[Record]] = {}
    for line in evaluations:
        for name in line:
            if match := re.fullmatch(r"eval/(.+)/tasks", name):
                found.setdefault(match[1], []).append(line)
    return found


# ---- evaluations and curves -------------------------------------------------------------------------------
def _evaluations(evaluations: Sequence[Record]) -> str:
    header = (
        "panel",
        "iteration",
        "environment steps",
        "success",
        "return",
        "turns",
        "unreadable acts",
        "failed",
        "tasks",
    )
    rows = [
        (
            panel,
            str(line[STEP]),
            _number(line.get(ENVIRONMENT_STEPS)),
            _with_bounds(line, f"eval/{panel}/success"),
            _with_bounds(line, f"eval/{panel}/return"),
            _number(line.get(f"eval/{panel}/turns")),
            _percent(line.get(f"eval/{panel}/invalid")),
            _number(line.get(f"eval/{panel}/failed")),
            _number(line.get(f"eval/{panel}/tasks")),
        )
        for panel, lines in _panels(evaluations).items()
        for line in lines
    ]
    if not rows:
        return ""
    note = "Success with Wilson's 95 % interval, return with a bootstrap interval. Failed episodes count as failures."
    return table(header, rows, numbers=range(1, 9)) + f'<p class="soft">{note}</p>'


def _charts(metrics: Sequence[Record], evaluations: Sequence[Record]) -> str:
    drawn = [chart(panel, x_label="iteration") for panel in panels_of(metrics, evaluations)]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def _stops(metrics: Sequence[Record], evaluations: Sequence[Record]) -> str:
    rows = []
    for panel, lines in _panels(evaluations).items():
        rows += list(_shares(lines[-1], f"eval/{panel}/stop/", f"{panel}, last evaluation"))
    if metrics:
        rows += list(_shares(metrics[-1], "stop/", "training, last iteration"))
    if not rows:
        return ""
    lines_of_table = "".join(
        f"<tr><td>{html.escape(where)}</td><td>{html.escape(reason)}</td><td class='number'>{_percent(share)}</td>"
        f'<td style="width:45%"><div class="share" style="width:{100 * share:.1f}%"></div></td></tr>'
        for where, reason, share in rows
    )
    return f'<div class="wide"><table>{lines_of_table}</table></div>'


def _shares(line: Record, prefix: str, where: str) -> Iterator[tuple[str, str, float]]:
    known = {reason.value for reason in StopReason}
    for name in sorted(line):
        reason = name.removeprefix(prefix)
        if name.startswith(prefix) and reason in known and line[name]:
            yield where, reason.replace("_", " "), min(float(line[name]), 1.0)


# ---- episodes ---------------------------------------------------------------------------------------------
def _transcripts(episodes: Sequence[tuple[int, str, Trajectory]], most: int) -> str:
    if not episodes:
        return ""
    latest = max(step for step, _, _ in episodes)
    shown = [(step, name, episode) for step, name, episode in episodes if step == latest][:most]
    return "".join(_episode(*one, first=k == 0) for k, one in enumerate(shown))


def _episode(step: int, name: str, episode: Trajectory, *, first: bool) -> str:
    result = "no outcome" if episode.outcome is None else f"outcome {episode.outcome:g}"
    returns = ", ".join(f"{agent} {value:.3g}" for agent, value in episode.returns.items())
    ending = episode.stop.value.replace("_", " ")
    facts = f"{name}, iteration {step} · {ending} · {len(episode.steps)} turns · return {returns}"
    fault = ""
    if episode.error:
        fault = f'<div class="turn bad">{html.escape(f"{episode.error.boundary}: {episode.error.message}")}</div>'
    turns = "".join(_turn(one) for one in episode.steps)
    head = f"<summary><b>{html.escape(result)}</b> <small>{html.escape(facts)}</small></summary>"
    return f"<details{' open' if first else ''}>{head}{turns}{fault}</details>"


def _turn(step: Step) -> str:
    reward = f" · reward {step.reward:g}" if step.reward else ""
    wrong = ' <span class="bad">unreadable</span>' if step.info.get("invalid") else ""
    tokens = f" · {len(step.action.tokens)} tokens" if len(step.action.tokens) else ""
    head = f"<small>turn {step.turn} · {html.escape(step.agent)}{tokens}{reward}</small>{wrong}"
    return (
        f'<div class="turn">{head}<pre>{html.escape(_seen(step))}</pre>'
        f'<pre class="act">{html.escape(_done(step))}</pre></div>'
    )


def _seen(step: Step) -> str:
    seen = step.observation
    if seen.text is not None:
        return seen.text
    if seen.messages is not None:
        return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in seen.messages)
    if seen.vector is not None:
        return "[" + ", ".join(f"{value:.3g}" for value in seen.vector[:32]) + "]"
    return "(an image)" if seen.image is not None else "(nothing to see)"


def _done(step: Step) -> str:
    return step.action.text if step.action.text is not None else str(step.action.value)


# ---- recipe -----------------------------------------------------------------------------------------------
def _recipe(recipe: Any) -> str:
    rows = list(_leaves(recipe, ""))
    return table(("key", "value", "origin"), rows) if rows else ""


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Key, value and origin; an entry `{"value": …, "origin": …}` is a leaf, other mappings are sections."""
    if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "origin"}:
        yield path, _text(value["value"]), str(value.get("origin", ""))
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, _text(value), ""


# ---- numbers ----------------------------------------------------------------------------------------------
def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def _percent(value: Any) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _with_bounds(line: Record, name: str) -> str:
    if line.get(name) is None:
        return "–"
    low, high = line.get(f"{name}_low"), line.get(f"{name}_high")
    return _number(line[name]) if low is None else f"{_number(line[name])} [{_number(low)}, {_number(high)}]"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
