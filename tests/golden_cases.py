"""Hand-derived numbers: the cases of `palaestra/systems/*/golden.yaml` and of tests/golden/*.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from palaestra.data import StepTable

ROOT = Path(__file__).resolve().parents[1]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, if it is there: ten times as fast
GOLDEN = (*sorted((ROOT / "tests/golden").glob("*.yaml")), *sorted((ROOT / "palaestra/systems").glob("*/golden.yaml")))


@dataclass(frozen=True)
class GoldenCase:
    """One hand-derived result. `columns` are the file's table as it is written."""

    file: str
    slot: str
    part: str
    options: dict[str, Any]
    expected: Any
    derivation: str
    columns: dict[str, list[Any]]
    extra: dict[str, Any]  # any further keys of the case

    @cached_property
    def table(self) -> StepTable:
        """The file's columns, with the case's own `columns` over them, as a table."""
        return StepTable(**{**self.columns, **self.extra.get("columns", {})})


class Golden:
    """`golden.t1` is the table of tests/golden/t1.yaml; `golden.cases("gigpo")` its hand-derived results."""

    def __getattr__(self, name: str) -> StepTable:
        found = {document["name"]: document for document in golden_documents() if "table" in document}
        if name not in found:
            raise AttributeError(f"no golden table {name}; there are {sorted(found)}")
        return StepTable(**found[name]["table"])

    def cases(self, part: str | None = None, file: str | None = None) -> list[GoldenCase]:
        """All cases, or those of one part or one document."""
        return [c for c in golden_cases() if part in (None, c.part) and file in (None, c.file)]


@cache
def golden_documents() -> tuple[dict[str, Any], ...]:
    """Every table with its cases. A system's golden.yaml holds several where its cases need several tables."""
    found = []
    for path in GOLDEN:
        own = path.stem if path.parent.name == "golden" else path.parent.name
        for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=LOADER):
            found.append({"name": own, **document})
    return tuple(found)


def golden_cases() -> list[GoldenCase]:
    """Every case of every document."""
    return [case for document in golden_documents() for case in _cases(document)]


def _cases(document: dict[str, Any]) -> Iterator[GoldenCase]:
    known = ("slot", "part", "options", "expected", "derivation")
    for case in document.get("cases", []):
        yield GoldenCase(
            file=document["name"],
            slot=case.get("slot", ""),
            part=case.get("part", ""),
            options=case.get("options") or {},
            expected=case.get("expected"),
            derivation=case.get("derivation", ""),
            columns=document.get("table", {}),
            extra={key: value for key, value in case.items() if key not in known},
        )
