"""Pages with results: every figure on them stands in the JSON that the page names, at the precision shown.

A comment `<!-- numbers: FILE … -->` before a paragraph or a table says where its figures come from. A figure is a
number with decimals, or one in percent; settings stand in backticks. An estimate with an interval must be found as
such. Means over seeds, with Student's interval, count as stored. In a table, `{row}` in a file's name is the text of
the row's first cell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from palaestra.evaluation.statistics import t_interval
from tests.house.source_text import ROOT

PAGES = {  # page → where the figures of blocks come from that say nothing themselves
    "results.md": "",
    "comparisons.md": "",
    "self-play-results.md": "",
    "teams.md": "",
    "teams-recipes.md": "",
    "teams-search.md": "",
    "credit-in-teams.md": "",
}
SOURCE = re.compile(r"<!-- numbers: (.+?) -->\n+")
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(rf"(?P<value>{NUMBER})(?P<percent> ?%)? [(\[](?P<low>{NUMBER})(?:,| to) (?P<high>{NUMBER})[)\]]")
PAIR = re.compile(rf"\[(?P<low>{NUMBER}), (?P<high>{NUMBER})\]")
SINGLE = re.compile(r"(?<![\w.,])(?P<value>[+-]?\d[\d,]*\.\d+|[+-]?\d+(?= ?%))(?P<percent> ?%)?")
NOT_FIGURES = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|arXiv \d{4}\.\d{4,5}|<!--.*?-->|95 %", re.S)
LISTS = ("curve", "curves", "grid", "machine", "versions")  # keys of numbers that no page quotes


@dataclass
class Known:
    """The numbers of some JSON: all, and those that come as estimate, lower and upper bound, or as bounds alone."""

    single: list[float] = field(default_factory=list)
    intervals: list[tuple[float, ...]] = field(default_factory=list)

    def read(self, found: Any) -> None:
        if isinstance(found, bool) or found is None or isinstance(found, str):
            return
        if isinstance(found, int | float):
            self.single.append(float(found))
        elif isinstance(found, list):
            if len(found) in (2, 3) and all(isinstance(each, int | float) for each in found):
                self.intervals.append(tuple(float(each) for each in found))
            for each in found:
                self.read(each)
        else:
            if found and all(str(key).isdigit() and isinstance(value, dict) for key, value in found.items()):
                self.means(list(found.values()))
            if "curve" in found and "mean" in found["curve"]:
                self.single.append(found["curve"]["mean"][0])
            for key, value in found.items():
                low, high = (
                    found.get(f"{key}_{side}", found.get(side) if key in ("mean", "share") else None)
                    for side in ("low", "high")
                )
                if isinstance(value, int | float) and low is not None and high is not None:
                    self.intervals.append((value, low, high))
                if key not in LISTS:
                    self.read(value)

    def means(self, seeds: list[dict[str, Any]]) -> None:
        """Of what every seed has."""
        for key in seeds[0]:
            values = [each.get(key) for each in seeds]
            if all(isinstance(value, dict) for value in values):
                self.means(values)
            elif len(seeds) > 1 and all(isinstance(value, int | float) for value in values):
                interval = t_interval(values)
                self.single.append(interval.value)
                self.intervals.append((interval.value, interval.low, interval.high))

    def holds(self, shown: tuple[str, ...], *, percent: bool) -> bool:
        places = [len(number.partition(".")[2]) for number in shown]
        values = [float(number.replace(",", "")) for number in shown]
        stored = [(each,) for each in self.single] if len(shown) == 1 else self.intervals
        scales = (100, 1) if percent else (1,)
        return any(
            len(each) == len(shown)
            and all(
                abs(scale * a - b) <= 0.5001 * 10**-digits for a, b, digits in zip(each, values, places, strict=True)
            )
            for each in stored
            for scale in scales
        )


def blocks(text: str, default: str) -> Iterator[tuple[str, str]]:
    """Paragraphs and rows of tables, each with its source."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    for block in re.split(r"\n\s*\n(?!<!--)", SOURCE.sub(lambda match: f"\n\n<!-- numbers: {match[1]} -->\n", text)):
        match = SOURCE.match(block.lstrip())
        source = match[1] if match else default
        is_table = "\n|" in f"\n{block}"
        for line in block.splitlines() if is_table else [block]:
            row = re.sub(r"\]\([^)]*\)|[`\[*]", "", line.strip("| ").partition(" |")[0]) if is_table else ""
            yield source.replace("{row}", row.replace(" ", "_")), line


def unsupported(text: str, default: str = "", root: Path = ROOT) -> list[str]:
    """Figures of a page that the JSON it names does not hold."""
    wrong = []
    for source, block in blocks(text.replace("−", "-"), default):
        plain, known = NOT_FIGURES.sub(" ", block), Known()
        for name in source.split():
            if (root / name).is_file():
                known.read(json.loads((root / name).read_text(encoding="utf-8")))
        for pattern in (INTERVAL, PAIR, SINGLE):
            for match in pattern.finditer(plain):
                shown = tuple(number for name, number in match.groupdict().items() if name != "percent")
                if not known.holds(shown, percent="%" in match[0] or len(shown) == 3):
                    wrong.append(f"{match[0]} ({source or 'no source'}): {' '.join(block.split())[:90]}")
            plain = pattern.sub(" ", plain)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_figures_stand_in_the_json(page: str) -> None:
    assert not unsupported((ROOT / "docs" / page).read_text(encoding="utf-8"), PAGES[page])


def test_a_wrong_figure_is_found(tmp_path: Path) -> None:
    stored = {"last": {"mean": 0.1992, "low": 0.1281, "high": 0.2706}, "lost": 0.0317, "gain": [0.01, 1.1024]}
    (tmp_path / "a.json").write_text(json.dumps(stored))
    source = "<!-- numbers: a.json -->\n"
    for right in ("| x | 0.199 [0.128, 0.271] |", "It is 3.2 % of 95 %, or `0.7`.", "| x | [0.01, 1.10] |", "0.20"):
        assert not unsupported(f"Text.\n\n{source}{right}\n\nText.", root=tmp_path), right
    for fault in ("| x | 0.199 [0.128, 0.272] |", "It is 3.3 %.", "−0.199", "0.198", "| x | [0.01, 1.11] |", "7 %"):
        assert unsupported(f"Text.\n\n{source}{fault}\n\nText.", root=tmp_path), fault
    assert unsupported(f"{source}0.199\n\nIn the next paragraph 0.199 has no source.", root=tmp_path)
    assert unsupported("| w | 0.199 |", "{row}.json", tmp_path) and not unsupported(
        "| a | 0.199 |", "{row}.json", tmp_path
    )
