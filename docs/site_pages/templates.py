"""The table of TRL's chat templates, made from what the tests compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from site_pages.markdown import table

COMPARED = "tests/chat/trl_templates.yaml"
MARK = "<!-- made: templates -->"
HEADER = ("template of TRL {trl}", "thoughts of earlier replies", "tools", "equal to `apply_chat_template`")
TOOLS = {"all": "declared, with calls", "declared": "declared; calls become words", "none": "become words"}


def templates_table(root: Path) -> str:
    """A row for each template."""
    compared: dict[str, Any] = yaml.safe_load((root / COMPARED).read_text(encoding="utf-8"))
    return table((HEADER[0].format(**compared), *HEADER[1:]), map(_line, compared["templates"].items()))


def _line(item: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, row = item
    reasons = " ".join(dict.fromkeys(row.get("differs", {}).values()))
    thoughts = "apart from the words" if row["thoughts"] == "apart" else "inside the words"
    return f"`{name}`", thoughts, TOOLS[row["tools"]], f"no: {reasons}" if reasons else "yes"
