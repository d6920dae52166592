"""Draws a comparison. It stands apart, since it loads matplotlib."""

from __future__ import annotations

import os
from pathlib import Path

from palaestra.evaluation.comparison import Comparison
from palaestra.evaluation.curves import Panel, Series, draw


def plot(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Draw the mean curves of the arms with their intervals, as PNG or SVG by the suffix of `path`."""
    series = [
        Series(
            name=f"{arm.name} ({len(arm.seeds)} seeds)",
            x=comparison.grid,
            y=arm.curves.mean(axis=0),
            low=arm.low,
            high=arm.high,
        )
        for arm in comparison.arms
    ]
    panel = Panel(title=f"{comparison.metric}: mean and {comparison.level:.0%} interval", series=series)
    return draw([panel], path, x_label=comparison.axis.replace("_", " "))
