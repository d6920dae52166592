"""The tables of promises, made from what `make attack` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from site_pages.markdown import table

RESULT = "benchmarks/results/reliability.json"
MARK = "<!-- made: reliability -->"
HEADER = ("promise", "how it is tried", "trials", "")


def committed(root: Path) -> dict[str, Any]:
    """What was found, as it is committed."""
    return json.loads((root / RESULT).read_text(encoding="utf-8"))


def reliability_tables(content: dict[str, Any]) -> str:
    """A table for each subject, then what was skipped and why."""
    subjects = dict.fromkeys(row["subject"] for row in content["promises"])
    parts = [
        f"### {subject}\n\n{table(HEADER, [_line(row) for row in content['promises'] if row['subject'] == subject])}"
        for subject in subjects
    ]
    return "\n\n".join([*parts, *_skipped(content)]) + "\n"


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return row["promise"], "; ".join(row["how"]), f"{row['trials']:,}", row["state"]


def _skipped(content: dict[str, Any]) -> list[str]:
    """Reasons why tests were not tried on the machine, each with the number of tests."""
    reasons = [reason for row in content["promises"] for reason in row["skipped"].values()]
    if not reasons:
        return []
    counted = [(reason, str(reasons.count(reason))) for reason in dict.fromkeys(reasons)]
    return [f"### Not tried on this machine\n\n{table(('reason', 'tests'), counted)}"]
