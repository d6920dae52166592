"""Draws panels as SVG for the report. The page sets the colors, so charts are readable in light and dark mode."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from palaestra.evaluation.curves import Array, Panel
from palaestra.evaluation.page import rendered


def chart(panel: Panel, *, x_label: str) -> Markup:
    """Draw one panel as an SVG figure with title and legend."""
    return rendered("chart.html", panel=panel, frame=_Frame(panel), x_label=x_label)


class _Frame:
    """Maps data to positions in the picture. The curves lie between `left`, `right`, `top` and `floor`."""

    width, height = 360, 220
    left, right, top, floor = 46, 348, 10, 186

    def __init__(self, panel: Panel) -> None:
        self.x_low, self.x_high = _range([series.x for series in panel.series])
        heights = [values for s in panel.series for values in (s.y, s.low, s.high) if values is not None]
        self.y_low, self.y_high = _range(heights)
        self.y_ticks = ticks(self.y_low, self.y_high)
        self.x_ticks = [tick for tick in ticks(self.x_low, self.x_high) if tick == int(tick)]
        self.y_low, self.y_high = min(self.y_low, self.y_ticks[0]), max(self.y_high, self.y_ticks[-1])

    def x(self, value: float) -> str:
        return f"{self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left):.1f}"

    def y(self, value: float) -> str:
        return f"{self.floor - (value - self.y_low) / (self.y_high - self.y_low) * (self.floor - self.top):.1f}"

    def path(self, x: Array, y: Array) -> str:
        return " ".join(f"{self.x(a)},{self.y(b)}" for a, b in zip(x, y, strict=True))


def ticks(low: float, high: float, *, about: int = 4) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.75)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)] or [low]


def _range(columns: list[Array]) -> tuple[float, float]:
    values = np.concatenate(columns)
    low, high = float(values.min()), float(values.max())
    # A constant curve needs a range, or it has no scale. A range far smaller than the values would show only noise.
    margin = max(abs(high), 1.0) * 0.05
    return (low - margin, high + margin) if high - low <= 1e-9 * max(abs(high), 1.0) else (low, high)
