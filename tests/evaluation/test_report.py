"""What must hold for curves and the report:

(1) panels are found by metric name, for one policy and for several, and series take their bounds;
(2) panels are drawn as a picture;
(3) the report is one well-formed file that loads nothing and runs nothing;
(4) it shows recipe values with their origin, evaluations with intervals, stop reasons, and episodes;
(5) text from episodes and recipes is escaped;
(6) whatever is missing is left out: an empty run folder still gives a report;
(7) charts survive constants, single points and gaps;
(8) no text of a run becomes markup: names of agents, policies and environments, tasks, messages of errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import Action, Failure, Observation, Step, StopReason, Task, Trajectory
from palaestra.evaluation.charts import chart, ticks
from palaestra.evaluation.curves import Panel, Series, draw, panels_of
from palaestra.evaluation.panels import summarize
from palaestra.evaluation.report import write_report
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import METRICS, REPORT, RunFolder
from palaestra.store.metrics import MetricsLog, read

Episodes = Callable[..., Trajectory]
Runs = Callable[..., RunFolder]


@pytest.fixture
def folder(tmp_path: Path, run: Runs, episode: Episodes) -> RunFolder:
    """A small run with everything in it, and text that must be escaped."""
    extra = {
        "rollout.group": {"value": 8, "origin": "rooms.yaml:4"},
        "name": {"value": "<b>&", "origin": "default"},
    }
    made = run(tmp_path / "run <1>", [], extra=extra)
    log, episodes = MetricsLog(made), EpisodeLog(made)
    for step, wins in ((0, 4), (10, 9)):
        played = [episode(float(k < wins), text="<script>alert(1)</script>") for k in range(9)]
        played.append(episode(failed="engine"))
        log.append_evaluation(step, summarize(played, name="rooms").metrics() | {"environment_steps": 7 * step})
        episodes.append(step, "eval/rooms", played[-2:])
    for step in range(1, 11):
        log.append(step, {"reward/mean": step / 10, "policy/kl": None if step < 3 else 0.1, "stop/completed": 1.0})
    return made


def test_panels_are_found_by_name() -> None:  # rule 1
    evaluations = [
        {"step": s, "eval/rooms/success": 0.5, "eval/rooms/success_low": 0.4, "eval/rooms/success_high": 0.6}
        for s in (0, 5)
    ]
    metrics = [{"step": 1, "policy/a/kl": 0.1, "policy/b/kl": 0.2, "reward/mean": 1.0, "agent/a/reward/mean": 2.0}]
    found = {panel.title: panel.series for panel in panels_of(metrics, evaluations)}
    assert list(found) == ["Success in evaluations", "Reward", "KL"]
    assert [series.name for series in found["KL"]] == ["a", "b"]
    assert {series.name for series in found["Reward"]} == {"a", "Reward"}
    success = found["Success in evaluations"][0]
    assert success.low is not None
    assert success.low.tolist() == [0.4, 0.4]


def test_a_missing_number_is_a_gap() -> None:  # rules 1 and 7
    panel = panels_of([{"step": s, "policy/kl": v} for s, v in ((1, 0.1), (2, None), (3, 0.3))], [])[0]
    assert panel.series[0].x.tolist() == [1, 3]
    assert panels_of([{"step": 1, "policy/kl": None}], []) == []


def test_curves_are_drawn(folder: RunFolder, tmp_path: Path) -> None:  # rule 2
    path = draw(panels_of(read(folder / METRICS), []), tmp_path / "curves.png", x_label="iteration")
    assert path.read_bytes().startswith(b"\x89PNG")


VOID = {"meta", "br", "line", "polyline", "polygon"}


class Reader(HTMLParser):
    """Collects tags and attributes; complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [f"{name}={value}" for name, value in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_one_file_that_loads_nothing(folder: RunFolder) -> None:  # rules 3 and 5
    text = write_report(folder).read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.links == []
    assert not {"script", "link", "iframe", "img", "b>"} & set(reader.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "prefers-color-scheme: dark" in text


def test_what_the_report_shows(folder: RunFolder) -> None:  # rules 4 and 5
    text = write_report(folder).read_text()
    for expected in (
        "0.400 → 0.900",
        "0.900 [0.596, 0.982]",
        "rooms.yaml:4",
        "rollout.group",
        "&lt;b&gt;&amp;",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "engine: it &lt;broke&gt;",
        "run &lt;1&gt;",
        "10.0 %",
    ):
        assert expected in text, expected
    assert text.count("<details") == 2  # those of the last iteration only
    assert "<svg" in text
    assert write_report(folder, transcripts=1).read_text().count("<details") == 1


HOSTILE = """'"><script>alert(1)</script><img src=x onerror=alert(1)><b onmouseover='alert(1)'>{{ 7 * 7 }}"""


def test_no_text_of_a_run_becomes_markup(tmp_path: Path, run: Runs, episode: Episodes) -> None:  # rule 8
    folder = run(tmp_path / "run", [], extra={HOSTILE: {HOSTILE: {"value": HOSTILE, "origin": HOSTILE}}})
    log, episodes = MetricsLog(folder), EpisodeLog(folder)
    action = Action(text=HOSTILE, reply=f"<think>a thought</think>{HOSTILE}", tokens=np.array([1], np.int32))
    turn = Step(agent=HOSTILE, turn=0, observation=Observation(text=HOSTILE), action=action)
    chat = Step(
        agent="b", turn=1, observation=Observation(messages=[{"role": HOSTILE, "content": HOSTILE}]), action=action
    )
    played = Trajectory(
        task=Task(env=HOSTILE, seed=0, params={HOSTILE: HOSTILE}),
        group=HOSTILE,
        steps=[turn, chat],
        outcome=1.0,
        returns={HOSTILE: 1.0, "b": 0.5},
        stop=StopReason.COMPLETED,
        error=Failure(boundary="environment", message=HOSTILE),
    )
    for step in (0, 10):
        log.append_evaluation(step, summarize([played], name=HOSTILE).metrics() | {"environment_steps": 7 * step})
        episodes.append(step, HOSTILE, [played])
    for step in range(1, 4):
        log.append(step, {f"policy/{HOSTILE}/kl": 0.1, "policy/b/kl": 0.2, f"agent/{HOSTILE}/reward/mean": 1.0})
    text = write_report(folder, title=HOSTILE).read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.links == []
    assert not {"script", "img", "b onmouseover"} & set(reader.tags)
    assert "{{ 7 * 7 }}" in text, "text of a run is no template"
    assert "&lt;script&gt;alert(1)" in text and "<script" not in text
    assert text.count("&lt;think&gt;a thought&lt;/think&gt;") == 2, "the reply stands above the act"
    assert text.count("&lt;script&gt;") > 12, "every place shows it"


def test_an_empty_run_gives_a_report(tmp_path: Path) -> None:  # rule 6
    folder = RunFolder.create(tmp_path / "empty")
    text = write_report(folder, title="nothing").read_text()
    assert "<h1>nothing</h1>" in text
    assert "<h2>" not in text
    assert (folder / REPORT).exists()


floats = st.floats(-1e9, 1e9)


@given(st.lists(st.tuples(st.integers(0, 10**6), floats), min_size=1, max_size=30, unique_by=lambda point: point[0]))
def test_charts_survive_any_numbers(points: list[tuple[int, float]]) -> None:  # rule 7
    x, y = np.array(sorted(points), float).T
    drawn = chart(Panel(title="t", series=[Series(name="s", x=x, y=y, low=y - 1, high=y + 1)]), x_label="x")
    Reader().feed(drawn)
    for number in re.findall(r' (?:c?[xy][12]?|points)="([^"]+)"', drawn):
        assert all(-1 <= float(part) <= 361 for part in re.split("[ ,]", number)), number


@given(floats, floats)
def test_ticks_are_round_and_inside(a: float, b: float) -> None:  # rule 7
    low, high = min(a, b), max(a, b)
    if high - low > 1e-6 * max(abs(high), abs(low), 1.0):
        found = ticks(low, high)
        assert 1 <= len(found) <= 12
        assert found == sorted(set(found))
        margin = 1e-6 * (high - low) + 1e-11
        assert all(low - margin <= tick <= high + margin for tick in found)
