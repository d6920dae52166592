"""The tables of metrics, made from metrics.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from site_pages.markdown import code, table

METRICS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
MARK = "<!-- made: metrics -->"
HEADER = ("name", "meaning", "usual", "if it is not so")


def metrics_tables() -> str:
    """A table for each section, then the names that one method alone writes."""
    pieces = []
    for section in METRICS["sections"]:
        rows = [
            (", ".join(code(section.get("front", "") + name) for name in names.split(", ")), *cells)
            for names, *cells in section["names"]
        ]
        text = [section["text"]] if "text" in section else []
        pieces += [f"## {section['title']}", *text, table(HEADER, rows)]
    own = [(code(name), ", ".join(map(_method, methods))) for name, methods in METRICS["of_systems"].items()]
    return "\n\n".join(
        [*pieces, "## Names of single methods", METRICS["text_of_systems"], table(("name", "method"), own)]
    )


def _method(name: str) -> str:
    return f"[{name}](methods/{name}.md)"
