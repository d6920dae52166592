"""Learning curves of worlds: the table and the pictures, made from what `benchmarks/curves.py` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from site_pages.markdown import table

from palaestra.evaluation.curves import Panel, Series, draw

RESULTS = "benchmarks/results/curves"
HELD_OUT = "benchmarks/results/held_out.json"
HEAD = """# Learning curves of worlds

Each world has a recipe that trains a small language policy on a bare CPU, such as `palaestra train worlds/shop.yaml`.
The table shows the success in evaluations after the warm start, which clones demonstrations, and after reinforcement
learning. Both are means over seeds. A world's name links to its curve.

The gain has two intervals at 95 %. The first says where the gain of these very runs would lie on other tasks. The
second is Student's interval over seeds. It is wide, because there are few seeds and warm starts differ much. "Trained
on" is the share of evaluation tasks whose problem training met as well (`python benchmarks/held_out.py`).
`python benchmarks/curves.py` makes the runs again.

"""
COLUMNS = (
    "world",
    "seeds",
    "trained on",
    "after warm start",
    "after training",
    "gain, other tasks",
    "gain, over seeds",
    "seconds a run",
)


def measured(root: Path) -> dict[str, dict[str, Any]]:
    """World → what was measured in it."""
    files = sorted((root / RESULTS).glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def curves_page(root: Path) -> str:
    """The table of all worlds that were measured."""
    overlaps = json.loads((root / HELD_OUT).read_text(encoding="utf-8"))
    rows = []
    for name, found in measured(root).items():
        asked = overlaps[found["recipe"]]
        share = "unknown" if asked["shared"] is None else f"{asked['shared'] / asked['evaluated']:.2f}"
        gain = "{:+.3f} [{:.3f}, {:.3f}]".format(*found["gain"])
        over = "[{:.2f}, {:.2f}]".format(*found["gain_over_seeds"]) if found["gain_over_seeds"] else "–"
        ends = (f"{found['warm_start']:.3f}", f"{found['trained']:.3f}")
        link = f"[{name}](images/curves/{name}.png)"
        rows.append((link, str(found["seeds"]), share, *ends, gain, over, f"{found['seconds']:.0f}"))
    return HEAD + table(COLUMNS, rows)


def picture(name: str, found: dict[str, Any], place: Path) -> bytes:
    """The mean over seeds as a PNG, with the lowest and the highest seed as its band."""
    values = np.array([[point["value"] for point in seed] for seed in found["curves"]])
    x = np.array([point["step"] for point in found["curves"][0]], np.float64)
    series = Series(name=name, x=x, y=values.mean(0), low=values.min(0), high=values.max(0))
    panel = Panel(title=f"{name}: success in evaluations", series=[series])
    return draw([panel], place, x_label="iteration").read_bytes()
