"""Charts as SVG text that takes its colors from the page: readable on light and on dark, without any package.

Knows panels. Knows nothing of runs or of the page around it.
"""

from __future__ import annotations

import html
import math

import numpy as np

from palaestra.evaluation.curves import Array, Panel, Series

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 34


def chart(panel: Panel, *, x_label: str) -> str:
    """One panel as an SVG figure with its title and legend; series have the classes s0, s1 …"""
    frame = _Frame(panel)
    drawn = [_axes(frame, x_label)]
    for k, series in enumerate(panel.series):
        drawn.append(_line(frame, series, f"s{k % 8}"))
    label = html.escape(panel.title)
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    return f"<figure><figcaption>{label}{_legend(panel)}</figcaption>{picture}</figure>"


class _Frame:
    """Maps data to places on the picture."""

    def __init__(self, panel: Panel) -> None:
        self.x_low, self.x_high = _range([series.x for series in panel.series])
        heights = [values for s in panel.series for values in (s.y, s.low, s.high) if values is not None]
        self.y_low, self.y_high = _range(heights)
        self.y_ticks = ticks(self.y_low, self.y_high)
        self.x_ticks = [tick for tick in ticks(self.x_low, self.x_high) if tick == int(tick)]
        self.y_low, self.y_high = min(self.y_low, self.y_ticks[0]), max(self.y_high, self.y_ticks[-1])

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)

    def path(self, x: Array, y: Array) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True))


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
    # A constant needs some height, or there is no scale; a tiny one relative to its size would be noise only.
    margin = max(abs(high), 1.0) * 0.05
    return (low - margin, high + margin) if high - low <= 1e-9 * max(abs(high), 1.0) else (low, high)


def _axes(frame: _Frame, x_label: str) -> str:
    parts = []
    for tick in frame.y_ticks:
        at = f"{frame.y(tick):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at}" dy="0.32em" text-anchor="end">{_short(tick)}</text>')
    floor = HEIGHT - BOTTOM
    for tick in frame.x_ticks:
        parts.append(
            f'<text class="tick" x="{frame.x(tick):.1f}" y="{floor + 14}" text-anchor="middle">{_short(tick)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{html.escape(x_label)}</text>')
    return "".join(parts)


def _line(frame: _Frame, series: Series, color: str) -> str:
    parts = []
    if series.low is not None and series.high is not None:
        if len(series.x) > 3:
            outline = frame.path(
                np.concatenate([series.x, series.x[::-1]]), np.concatenate([series.low, series.high[::-1]])
            )
            parts.append(f'<polygon class="band {color}" points="{outline}"/>')
        else:
            parts += [_bar(frame, *bounds, color) for bounds in zip(series.x, series.low, series.high, strict=True)]
    parts.append(f'<polyline class="line {color}" points="{frame.path(series.x, series.y)}"/>')
    if len(series.x) <= 24:
        parts += [_dot(frame, series.name, a, b, color) for a, b in zip(series.x, series.y, strict=True)]
    return "".join(parts)


def _dot(frame: _Frame, name: str, x: float, y: float, color: str) -> str:
    title = f"<title>{html.escape(name)}: {y:.4g} at {x:g}</title>"
    return f'<circle class="dot {color}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3">{title}</circle>'


def _bar(frame: _Frame, x: float, low: float, high: float, color: str) -> str:
    at = f"{frame.x(x):.1f}"
    return f'<line class="line {color}" x1="{at}" x2="{at}" y1="{frame.y(low):.1f}" y2="{frame.y(high):.1f}"/>'


def _legend(panel: Panel) -> str:
    if len(panel.series) == 1:
        return f" <small>{html.escape(panel.series[0].name)}</small>" if panel.series[0].name != panel.title else ""
    names = [f'<span class="key s{k % 8}">{html.escape(series.name)}</span>' for k, series in enumerate(panel.series)]
    return f"<small>{''.join(names)}</small>"


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"
