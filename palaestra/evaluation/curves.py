"""Makes panels of curves from the metrics of a run, and draws them as a picture with matplotlib.

The report draws the same panels as SVG (`charts.py`).
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from palaestra.store.atomic import write_atomic
from palaestra.store.lines import STEP

Array = NDArray[np.float64]

# People with color blindness can tell these apart (Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")

# Title, and pattern of the names of metrics. A group in the pattern gives the name of the series.
PANELS: tuple[tuple[str, str], ...] = (
    ("Success in evaluations", r"eval/(.+)/success"),
    ("Return in evaluations", r"eval/([^/]+)/return"),
    ("Reward", r"(?:agent/([^/]+)/)?reward/mean"),
    ("Entropy", r"policy/(?:([^/]+)/)?entropy"),
    ("KL", r"policy/(?:([^/]+)/)?kl"),
    ("Clip fraction", r"policy/(?:([^/]+)/)?clip_fraction"),
    ("Gradient norm", r"policy/(?:([^/]+)/)?grad_norm"),
    ("Engine–trainer mismatch", r"(?:policy/([^/]+)/)?mismatch/kl"),
    ("Turns", r"(?:agent/([^/]+)/)?turns/mean"),
    ("Unreadable acts", r"invalid/mean"),
    ("Cut responses", r"cut/mean"),
    ("Tokens", r"tokens/(.+)"),
    ("Stop reasons", r"stop/([^/]+)"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """One line: x and y, (points,) each; low and high are the bounds of its band."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One diagram with its title and its lines."""

    title: str
    series: list[Series]


def panels_of(metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The panels for which a run has logged a metric, in the order of `PANELS`.

    Args:
        metrics: the records of `metrics.jsonl`.
        evaluations: the records of `evaluations.jsonl`.
    """
    records = sorted([*metrics, *evaluations], key=lambda record: record[STEP])
    names = sorted({name for record in records for name in record})
    panels = []
    for title, pattern in PANELS:
        found = [(name, match) for name in names if (match := re.fullmatch(pattern, name))]
        series = [_series(name, _series_name(match) or title, records) for name, match in found]
        shown = [one for one in series if len(one.x)]
        if shown:
            panels.append(Panel(title=title, series=shown))
    return panels


def _series_name(match: re.Match[str]) -> str:
    return (match[1] or "").replace("_", " ") if match.re.groups else ""


def _series(metric: str, name: str, records: Sequence[Mapping[str, Any]]) -> Series:
    logged = [record for record in records if record.get(metric) is not None]
    x, y = _column(logged, STEP), _column(logged, metric)
    bounded = bool(logged) and all(record.get(f"{metric}_low") is not None for record in logged)
    low = _column(logged, f"{metric}_low") if bounded else None
    high = _column(logged, f"{metric}_high") if bounded else None
    return Series(name=name, x=x, y=y, low=low, high=high)


def _column(records: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.array([float(record[name]) for record in records])


def draw(panels: Sequence[Panel], path: str | os.PathLike[str], *, x_label: str, columns: int = 3) -> Path:
    """Draw panels in a grid, as PNG or SVG by the suffix of `path`. Equal panels give equal bytes.

    Intervals are drawn as a band for more than 3 points, and as bars for fewer.

    Returns: the path.
    Raises: RunFolderError, on a full disk.
    """
    figure = drawn_figure(panels, x_label=x_label, columns=columns)
    target = Path(path)
    drawn = io.BytesIO()
    kind = target.suffix.lstrip(".") or "png"
    stamp = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "palaestra"}):  # otherwise an SVG has random ids
        figure.savefig(drawn, format=kind, dpi=150, metadata=stamp)
    write_atomic(target, drawn.getvalue())
    return target


def drawn_figure(panels: Sequence[Panel], *, x_label: str, columns: int = 3) -> Figure:
    """The grid of panels that `draw` writes, as a figure of matplotlib."""
    columns = max(1, min(columns, len(panels)))
    rows = math.ceil(len(panels) / columns)
    size = (7.6, 4.4) if len(panels) == 1 else (4.2 * columns, 2.9 * max(rows, 1))
    # A figure without pyplot needs no display and changes no global state.
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel, x_label)
    return figure


def _draw_panel(axes: Any, panel: Panel, x_label: str) -> None:
    for k, series in enumerate(panel.series):
        color = COLORS[k % len(COLORS)]
        mark = "o" if len(series.x) <= 20 else None
        axes.plot(series.x, series.y, color=color, label=series.name, linewidth=1.6, marker=mark, markersize=3.5)
        if series.low is not None and series.high is not None:
            if len(series.x) > 3:
                axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.16, linewidth=0)
            else:
                reach = np.abs(np.stack([series.y - series.low, series.high - series.y]))
                axes.errorbar(series.x, series.y, reach, color=color, fmt="none", capsize=3, linewidth=1)
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(x_label, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel.series) > 1 or panel.series[0].name != panel.title:
        axes.legend(fontsize=8, frameon=False)
