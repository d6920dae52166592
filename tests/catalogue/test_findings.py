"""Findings: words about results say what the JSON says. (1) Every `seen.md` takes its numbers from the JSON and opens
with the verdict of its study; every finding of a system names a study and its verdict. (2) A claim's outcome follows
from the intervals, and what was not measured is called so. (3) References lead to the numbers they name, or are
refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.catalogue import Study, System, studies, systems
from palaestra.catalogue.findings import VERDICTS, Results, decimal, significant
from palaestra.errors import InvalidData
from tests.house.source_text import ROOT
from tests.messages import told

STUDIES = {study.name: study for study in studies(ROOT)}
RUN = {name: found for name, study in STUDIES.items() if (found := Results.read(ROOT, study)) is not None}
SYSTEMS = systems()
COUNT = r"(?:\d+|one|two|three|four|five|six|seven|eight)"
BARE = re.compile(rf"\d\.\d|\d ?%|\b{COUNT} of (?:the )?{COUNT} (?:seeds|runs|clones)\b")
CLAUSE = re.compile(rf"(?P<verdict>{'|'.join(VERDICTS)})(?P<detail>[ ,][^;]+?)?, see (?P<study>[\w-]+)")


def bare_numbers(text: str) -> list[str]:
    """Figures in a text that come from no reference; settings stand in backticks."""
    return BARE.findall(re.sub(r"`[^`]*`|\{[^{}]*\}", "", text))


def wrong_words(findings: str, system: System) -> list[str]:
    """What findings say that the studies it names do not."""
    wrong = []
    for clause in findings.split("; "):
        match = CLAUSE.fullmatch(clause)
        if match is None or match["study"] not in RUN:
            wrong.append(f"`{clause}`: write `VERDICT[, detail], see STUDY`")
            continue
        results = RUN[match["study"]]
        verdict = results.verdict_on(system) or results.verdict
        if match["verdict"] != verdict:
            wrong.append(f"`{clause}`: the numbers say {verdict}")
        if bare_numbers(clause):
            wrong.append(f"`{clause}`: numbers belong to the study")
    return wrong


@pytest.mark.parametrize("name", RUN)
def test_1_what_was_seen(name: str) -> None:
    results = RUN[name]
    text = (results.folder / "seen.md").read_text(encoding="utf-8")
    assert text.lower().startswith(results.verdict), f"the numbers say: {results.verdict}"
    assert not bare_numbers(text), "take numbers from the JSON by a reference, see palaestra/catalogue/findings.py"
    assert "{" not in results.filled(text)
    assert not (missing := untold(results, text)), f"tell {missing}"


def untold(results: Results, text: str) -> list[str]:
    """The two numbers of the first claim about the study's metric, as far as a text does not tell them."""
    told = {(kind, frozenset(pair)) for kind, *pair in re.findall(r"(final|height): (\S+) minus (\S+?)}", text)}
    claims = [each.claim for each in results.findings() if each.claim.measure is None]
    if results.verdict in ("not measured", "too few seeds") or not claims:
        return []
    pair = frozenset((claims[0].arm, claims[0].other))
    return [f"{kind}: {claims[0]}" for kind in ("final", "height") if (kind, pair) not in told]


@pytest.mark.parametrize("system", SYSTEMS, ids=[system.name for system in SYSTEMS])
def test_1_findings_of_systems(system: System) -> None:
    if system.findings:
        assert not wrong_words(system.findings, system)


def test_1_faults_are_found() -> None:
    hicon, hrpo = (next(each for each in SYSTEMS if each.name == name) for name in ("hicon_agent", "hrpo"))
    assert bare_numbers("ends 0.058 above") and bare_numbers("31 % of it") and bare_numbers("two of five seeds")
    assert untold(RUN["hicon_agent"], "level: {final: hicon minus whole}") == ["height: hicon level with whole"]
    assert not bare_numbers("ends {final: hrpo} after 22 iterations with a price of `0.4`")
    assert wrong_words("as expected, see hicon_agent", hicon)
    assert wrong_words("a third of what is read, level success, see hicon_agent", hicon)
    assert wrong_words("as expected, see hrpo", hrpo)
    assert wrong_words("as expected, +0.058, see nowhere", hrpo)


@pytest.mark.parametrize("name", RUN)
def test_1_stored_differences_are_those_of_the_seeds(name: str) -> None:
    found = RUN[name].comparison
    for arm, both in found["differences"].items():
        for what, stored in both.items():
            again = RUN[name].difference(arm, found["reference"], what)
            assert again.verdict == stored["verdict"] or stored["verdict"] == "too few seeds"
            if again.student is not None:
                assert again.student.low == pytest.approx(stored["student"]["low"], abs=1e-9)


# ---- outcomes -----------------------------------------------------------------------------------------------
def made(
    claims: list[str],
    *,
    row: list[float],
    height: list[float] | None = None,
    curve: list[float] | None = None,
    untested: str = "",
) -> Results:
    """Two arms of as many seeds as `row` has; `plain` ends at 0.5 in each, with a height of 0.4."""
    study = Study(
        name="tiny", title="", method="grpo", expected="", claims=claims, untested=untested, setup="",
        reference="plain", arms={"plain": [], "row": []}, also=["turns/mean"],
    )  # fmt: skip
    seeds = [str(n) for n in range(len(row))]

    def arm(final: list[float], area: list[float]) -> dict[str, Any]:
        per_seed = {"final": dict(zip(seeds, final, strict=True)), "area": dict(zip(seeds, area, strict=True))}
        means = {
            what: {"per_seed": values, "mean": sum(values.values()) / len(values), "low": 0.1, "high": 0.9}
            for what, values in per_seed.items()
        }
        return {**means, "curves": dict.fromkeys(seeds, curve or [0.1, 0.4, 0.5])}

    flat = [0.5] * len(row), [0.4] * len(row)
    comparison = {"arms": {"plain": arm(*flat), "row": arm(row, height or flat[1])}, "budget": 1234.0}
    turns = {"plain": {"mean": 2, "low": 1.5, "high": 2.5}, "row": {"mean": 3, "low": 2.6, "high": 3.4}}
    return Results(study, Path(), comparison, {"turns/mean": turns})


HIGHER, LOWER, WIDE, SAME = [0.7, 0.71, 0.72, 0.73], [0.3, 0.31, 0.32, 0.33], [0.2, 0.9, 0.3, 0.8], [0.4] * 4


@pytest.mark.parametrize(
    ("relation", "row", "height", "outcome", "verdict"),
    [
        ("above", HIGHER, HIGHER, "as expected", "as expected"),
        ("above", HIGHER, SAME, "as expected in the final value only", "in part as expected"),
        ("above", WIDE, HIGHER, "as expected in the mean height only", "in part as expected"),
        ("above", WIDE, SAME, "no difference seen", "no difference seen"),
        ("above", LOWER, SAME, "not as expected", "not as expected"),
        (
            "above",
            HIGHER,
            LOWER,
            "as expected in the final value, the opposite in the mean height",
            "in part as expected",
        ),
        ("below", LOWER, LOWER, "as expected", "as expected"),
        ("at least", WIDE, SAME, "no difference seen", "no difference seen"),
        ("at least", WIDE, LOWER, "not as expected", "not as expected"),
        ("at most", LOWER, LOWER, "as expected", "as expected"),
        ("level with", WIDE, SAME, "no difference seen", "no difference seen"),
        ("level with", WIDE, HIGHER, "not as expected", "not as expected"),
        ("above", [0.9, 0.9], [0.9, 0.9], "too few seeds", "too few seeds"),
    ],
)
def test_2_outcomes(relation: str, row: list[float], height: list[float], outcome: str, verdict: str) -> None:
    results = made([f"row {relation} plain"], row=row, height=height)
    assert results.findings()[0].outcome == outcome
    assert results.verdict == verdict


def test_2_several_claims() -> None:
    assert made(["row above plain", "turns/mean: row below plain"], row=HIGHER, height=HIGHER).verdict == (
        "in part as expected"
    )
    assert made(["row above plain"], row=HIGHER, height=HIGHER, untested="Half of it.").verdict == "in part as expected"
    assert made(["row at least plain", "turns/mean: row above plain"], row=WIDE).verdict == "as expected"


def test_2_what_was_not_measured() -> None:
    line = [0.1, 0.3, 0.5]  # one sloping line: no evaluation between the first and the budget
    results = made(["row above plain", "turns/mean: row above plain"], row=HIGHER, height=HIGHER, curve=line)
    assert results.verdict == "not measured" and results.findings()[0].final == ""
    assert made(["row above plain"], row=HIGHER, height=HIGHER, curve=[0.5] * 3).verdict == "as expected"
    assert {name for name, found in RUN.items() if found.verdict == "not measured"} == {"hrpo", "mars_kuhn"}


# ---- references -----------------------------------------------------------------------------------------------
def test_3_references(tmp_path: Path) -> None:
    results = made(["row above plain"], row=WIDE)
    (tmp_path / "more.json").write_text(json.dumps({"a b": {"c": 0.25}}))
    results = Results(results.study, tmp_path, results.comparison, results.measures)
    for reference, number in {
        "final: row": "0.550",
        "final: row with interval": "0.550 [0.100, 0.900]",
        "height: row minus plain": "0.000 [0.000, 0.000]",
        "each: row": "0.20, 0.90, 0.30 and 0.80",
        "lowest: row": "0.10, 0.10, 0.10 and 0.10",
        "count: row above plain": "2 of 4",
        "count: row below 0.25": "1 of 4",
        "turns/mean: row": "3",
        "turns/mean: row in percent": "300 %",
        "turns/mean: row with interval": "3.000 [2.600, 3.400]",
        "more.json: a b > c": "0.25",
        "budget": "1,234",
    }.items():
        assert results.filled(f"It is {{{reference}}}.") == f"It is {number}."


@pytest.mark.parametrize(
    "reference", ["final: nobody", "final: row minus", "turns/mean", "no/such: row", "each", "budgets", "no.json: a"]
)
def test_3_what_leads_nowhere_is_refused(reference: str) -> None:
    with told(InvalidData, "no number"):
        made(["row above plain"], row=WIDE).filled(f"{{{reference}}}")


def test_3_numbers_as_text() -> None:
    assert [decimal(x, "+") for x in (0.0582, -0.00027, 0.0, -1494.36)] == ["+0.058", "-0.0003", "0.000", "-1494.4"]
    assert [significant(x) for x in (33.94, 0.00533, 187.4, -3e-10)] == ["33.9", "0.00533", "187", "0"]
