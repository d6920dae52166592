"""Compares the claims of a study with its results, and fills numbers into texts about results.

A text about results (`seen.md`) has references in braces in place of numbers, so its numbers always agree with the
JSON:

    {final: hrpo}  {height: hrpo}  {start: hrpo}     last value, mean height and first value of an arm's curve
    {final: hrpo minus grpo}                         the difference with Student's interval, paired by seed
    {final: hrpo with interval}                      the last value with its bootstrap interval over seeds
    {each: hrpo}                                     the last value of every seed
    {count: hrpo below grpo}  {count: hrpo above 0.5}    number of seeds in which this holds for the last value
    {lowest: hrpo}                                   the lowest point of every seed's curve
    {updates: hrpo}                                  optimizer steps at the budget
    {info/agents/mean: hrpo}                         a further measure; also `with interval` and `in percent`
    {spikes.json: norms > policy/grad_norm > mean}   a number from another file of the same folder
    {budget}  {seeds}                                the budget; the largest number of seeds of an arm
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.catalogue.studies import Claim, Study, results_of
from palaestra.catalogue.systems import System
from palaestra.errors import InvalidData, UnknownName
from palaestra.evaluation.comparison import Difference, difference

AS_EXPECTED, IN_PART, NOT_AS_EXPECTED = "as expected", "in part as expected", "not as expected"
NO_DIFFERENCE, NOT_MEASURED, TOO_FEW = "no difference seen", "not measured", "too few seeds"
VERDICTS = (AS_EXPECTED, IN_PART, NOT_AS_EXPECTED, NO_DIFFERENCE, NOT_MEASURED, TOO_FEW)
FEWEST = 3  # fewest seeds of a difference for a verdict

_SIDES = {"above": ("higher",), "below": ("lower",), "level with": (), "at least": ("higher",), "at most": ("lower",)}
_STRICT = ("above", "below")  # these expect a difference
_OF = {"final": "final value", "area": "mean height"}
_REFERENCE = re.compile(r"\{([^{}:]+)(?:: ([^{}]+))?\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with its outcome.

    Attributes:
        outcome: one of VERDICTS. If the two numbers disagree, it says for which one the claim holds.
        final, height: the two numbers, final value and mean height, as text. A further measure has only `final`.
    """

    claim: Claim
    outcome: str
    final: str
    height: str = ""

    @property
    def contradicts(self) -> bool:
        """Whether the numbers contradict the claim."""
        return self.outcome == NOT_AS_EXPECTED

    @property
    def supports(self) -> bool:
        """Whether at least one number supports the claim."""
        return self.outcome.startswith(AS_EXPECTED)


def verdict(findings: Sequence[Finding], *, complete: bool = True) -> str:
    """The verdict on several claims: one of VERDICTS.

    If a claim about the metric was not measured or has too few seeds, this is the verdict. "as expected" needs three
    things: every claim with "above" or "below" holds in both numbers, at least one claim does so, and no claim is
    "not as expected".

    Args:
        complete: False, if some of what is expected is not tested. The verdict is then at most "in part as expected".
    """
    for reason in (NOT_MEASURED, TOO_FEW):
        if any(each.outcome == reason and each.claim.measure is None for each in findings):
            return reason
    against = any(each.contradicts for each in findings)
    if not any(each.supports for each in findings):
        return NOT_AS_EXPECTED if against else NO_DIFFERENCE
    strict = all(each.outcome == AS_EXPECTED for each in findings if each.claim.relation in _STRICT)
    whole = strict and not against and any(each.outcome == AS_EXPECTED for each in findings)
    return AS_EXPECTED if whole and complete else IN_PART


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a study, from `comparison.json` and `measures.json` in its folder."""

    study: Study
    folder: Path
    comparison: Mapping[str, Any]
    measures: Mapping[str, Mapping[str, Mapping[str, float]]]

    @classmethod
    def read(cls, root: Path, study: Study) -> Results | None:
        """Read the results of a study from a source checkout. Returns None if the study has not been run."""
        folder = results_of(root, study)
        if not (folder / "comparison.json").exists():
            return None
        measures = folder / "measures.json"
        return cls(study, folder, _json(folder / "comparison.json"), _json(measures) if measures.exists() else {})

    # ---- numbers ------------------------------------------------------------------------------------------
    def arm(self, name: str) -> Mapping[str, Any]:
        """The numbers of one arm. Raises: UnknownName, if there is no such arm."""
        arms: Mapping[str, Any] = self.comparison["arms"]
        if name not in arms:
            raise UnknownName(where=f"study {self.study.name}", what=f"no arm is called `{name}`.", options=arms)
        return arms[name]  # type: ignore[no-any-return]

    def difference(self, arm: str, other: str, what: str = "final") -> Difference:
        """`arm` minus `other`, seed by seed. `what` is `final`, or `area` for the mean height."""
        first, second = self.arm(arm)[what]["per_seed"], self.arm(other)[what]["per_seed"]
        return _difference(tuple(first.items()), tuple(second.items()))

    def measured(self, arm: str) -> bool:
        """Whether the arm's value at the budget was measured.

        Curves are linear between evaluations. If a curve is one sloping line, the arm was evaluated at the start, and
        next only after the budget. Its value at the budget is then only interpolated.
        """
        return not any(_one_line(curve) for curve in self.arm(arm)["curves"].values())

    # ---- claims -------------------------------------------------------------------------------------------
    def findings(self) -> list[Finding]:
        """The outcome of each claim of the study."""
        return [self._of_measure(each) if each.measure else self._of_metric(each) for each in self.study.relations]

    @property
    def verdict(self) -> str:
        """The verdict on all claims of the study."""
        return verdict(self.findings(), complete=not self.study.untested)

    def verdict_on(self, system: System) -> str | None:
        """The verdict on the claims whose first arm belongs to this system or variant; None, if there are none.

        If every arm uses the overlay of the system, all claims are about the system.
        """
        own = {name for name, layers in self.study.arms.items() if _is_of(system, name, layers)}
        if own == set(self.study.arms):
            return self.verdict
        findings = [each for each in self.findings() if each.claim.arm in own]
        return verdict(findings, complete=not self.study.untested) if findings else None

    def _of_metric(self, claim: Claim) -> Finding:
        both = {what: self.difference(claim.arm, claim.other, what) for what in _OF}
        shown = {what: with_student(found) for what, found in both.items()}
        outcome = _outcome(claim.relation, {_OF[what]: found.verdict for what, found in both.items()})
        if len(both["final"].per_seed) < FEWEST:
            outcome = TOO_FEW
        if not (self.measured(claim.arm) and self.measured(claim.other)):
            return Finding(claim, NOT_MEASURED, "")
        return Finding(claim, outcome, shown["final"], shown["area"])

    def _of_measure(self, claim: Claim) -> Finding:
        per_arm = self.measures.get(claim.measure or "", {})
        if claim.arm not in per_arm or claim.other not in per_arm:
            return Finding(claim, NOT_MEASURED, "")
        one, two = per_arm[claim.arm], per_arm[claim.other]
        apart = "higher" if one["low"] > two["high"] else "lower" if one["high"] < two["low"] else NO_DIFFERENCE
        return Finding(claim, _outcome(claim.relation, {"mean": apart}), f"{interval(one)} and {interval(two)}")

    # ---- texts --------------------------------------------------------------------------------------------
    def filled(self, text: str) -> str:
        """Replace every reference in a text by its number. Raises: InvalidData, if a reference has no number."""
        return _REFERENCE.sub(lambda match: self._number(match[1], match[2] or ""), text)

    def _number(self, kind: str, of: str) -> str:
        try:
            return self._looked_up(kind, of)
        except (KeyError, TypeError, ValueError, OSError, UnknownName):
            raise InvalidData(
                where=f"{self.study.name}/seen.md",
                what=f"the reference `{{{kind}{': ' if of else ''}{of}}}` has no number.",
                remedy="palaestra/catalogue/findings.py lists the references.",
            ) from None

    def _looked_up(self, kind: str, of: str) -> str:
        if kind == "budget":
            return f"{self.comparison['budget']:,.0f}"
        if kind == "seeds":
            return str(max(len(arm["seeds"]) for arm in self.comparison["arms"].values()))
        if kind in ("final", "height"):
            return self._height("area" if kind == "height" else kind, of)
        if kind == "start":
            return decimal(self.arm(of)["curve"]["mean"][0])
        if kind == "updates":
            return f"{np.mean(list(self.arm(of)['updates'].values())):.0f}"
        if kind == "each":
            return _listed([f"{value:.2f}" for value in self.arm(of)["final"]["per_seed"].values()])
        if kind == "lowest":
            return _listed([f"{min(curve):.2f}" for curve in self.arm(of)["curves"].values()])
        if kind == "count":
            return self._count(of)
        if kind.endswith(".json"):
            found = _json(self.folder / kind)
            for step in of.split(" > "):
                found = found[step]
            return significant(found)
        return self._measure(kind, of)

    def _height(self, what: str, of: str) -> str:
        first, minus, second = of.partition(" minus ")
        if minus:
            return with_student(self.difference(first, second, what))
        arm, with_interval, _ = of.partition(" with interval")
        return interval(self.arm(arm)[what]) if with_interval else decimal(self.arm(arm)[what]["mean"])

    def _count(self, of: str) -> str:
        arm, relation, other = of.split(" ")
        side = {"below": -1, "above": 1}[relation]
        values = self.arm(arm)["final"]["per_seed"]
        bounds = self.arm(other)["final"]["per_seed"] if other in self.comparison["arms"] else None
        fit = [side * (value - (bounds[seed] if bounds else float(other))) > 0 for seed, value in values.items()]
        return f"{sum(fit)} of {len(fit)}"

    def _measure(self, kind: str, of: str) -> str:
        arm, _, form = of.partition(" ")
        found, mean = self.measures[kind][arm], self.measures[kind][arm]["mean"]
        return {"": significant(mean), "with interval": interval(found), "in percent": f"{100 * mean:.0f} %"}[form]


@cache  # a page asks for the same intervals many times
def _difference(first: tuple[tuple[str, float], ...], second: tuple[tuple[str, float], ...]) -> Difference:
    """The difference of two arms whose values per seed are given as pairs."""
    return difference({int(seed): value for seed, value in first}, {int(seed): value for seed, value in second})


def _is_of(system: System, arm: str, layers: Sequence[str]) -> bool:
    return system.overlay in layers or arm.replace("-", "_") == system.name


def _one_line(curve: Sequence[float]) -> bool:
    """Whether a curve is one straight line that is not horizontal."""
    heights = np.asarray(curve)
    spread = float(np.ptp(heights))
    straight = np.linspace(heights[0], heights[-1], len(heights))
    return spread > 1e-9 and float(np.abs(heights - straight).max()) < 1e-6 * spread


def _outcome(relation: str, verdicts: Mapping[str, str]) -> str:
    """The outcome of a relation. `verdicts` maps the name of a number to higher, lower or no difference seen."""
    hoped = [name for name, found in verdicts.items() if found in _SIDES[relation]]
    against = [name for name, found in verdicts.items() if found in ("higher", "lower") and name not in hoped]
    if against:
        return f"{AS_EXPECTED} in the {hoped[0]}, the opposite in the {against[0]}" if hoped else NOT_AS_EXPECTED
    if not hoped:
        return NO_DIFFERENCE
    return AS_EXPECTED if len(hoped) == len(verdicts) else f"{AS_EXPECTED} in the {hoped[0]} only"


# ---- numbers as text ----------------------------------------------------------------------------------------
def decimal(value: float, sign: str = "") -> str:
    """A number with three decimals, from 100 on with one. A small number that is not 0 keeps one digit and its sign."""
    if abs(value) < 1e-6:
        return "0.000"
    if abs(value) < 0.0005:
        return f"{value:{sign}.1g}" if abs(value) >= 1e-4 else f"{value:{sign}.6f}"
    return f"{value:{sign}.{3 if abs(value) < 100 else 1}f}"


def significant(value: float) -> str:
    """A number with three significant digits. Below a millionth it is 0."""
    if abs(value) < 1e-6:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(found: Mapping[str, float]) -> str:
    """A mean with its bounds, as text."""
    return f"{decimal(found['mean'])} [{decimal(found['low'])}, {decimal(found['high'])}]"


def with_student(found: Difference) -> str:
    """A difference with Student's interval, as text. With one seed there is no interval."""
    student = found.student
    if student is None:
        return decimal(next(iter(found.per_seed.values())), "+")
    return f"{decimal(student.value, '+')} [{decimal(student.low, '+')}, {decimal(student.high, '+')}]"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
