"""The table of what models do in the worlds before training, made from what `benchmarks/zero_shot.py` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from site_pages.markdown import table

RESULT = "benchmarks/results/zero_shot.json"
MARK = "<!-- made: zero-shot -->"
HEADER = ("world", "success", "95 % interval", "readable", "executable", "turns", "tokens")


def zero_shot_tables(root: Path) -> str:
    """A table for each model that was measured."""
    models: dict[str, Any] = json.loads((root / RESULT).read_text(encoding="utf-8"))["models"]
    return "\n".join(f"**{name}**\n\n{table(HEADER, map(_line, worlds.items()))}" for name, worlds in models.items())


def _line(item: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    world, row = item
    span = "–" if row["interval"] is None else f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}"
    numbers = ["–" if row[name] is None else f"{row[name]:.2f}" for name in ("success", "readable", "executable")]
    return (f"`{world}`", numbers[0], span, *numbers[1:], f"{row['turns']:.1f}", f"{row['tokens']:.0f}")
