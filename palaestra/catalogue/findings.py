"""Findings: what the numbers of a study say about its claims, and texts whose numbers are taken from its results.

A text about results (`seen.md`) holds references in braces instead of numbers, so that no number in it can differ from
the JSON:

    {final: hrpo}  {height: hrpo}  {start: hrpo}     an arm's last value, the mean height of its curve, its first value
    {final: hrpo minus grpo}                         the difference with Student's interval, paired by seed
    {final: hrpo with interval}                      with the bootstrap interval over seeds
    {each: hrpo}                                     the last value of every seed
    {count: hrpo below grpo}  {count: hrpo above 0.5}    in how many seeds the last value is so
    {lowest: hrpo}                                   the lowest point of every seed's curve
    {updates: hrpo}                                  optimizer steps at the budget
    {info/agents/mean: hrpo}                         a further measure; also `with interval` and `in percent`
    {spikes.json: norms > policy/grad_norm > mean}   a number of another file in the same folder
    {budget}  {seeds}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
FEWEST = 3  # seeds of a difference on which anything is built

_SIDES = {"above": ("higher",), "below": ("lower",), "level with": (), "at least": ("higher",), "at most": ("lower",)}
_STRICT = ("above", "below")  # no difference is not what these expect
_OF = {"final": "final value", "area": "mean height"}
_REFERENCE = re.compile(r"\{([^{}:]+)(?:: ([^{}]+))?\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim and what the numbers say about it.

    `outcome` is one of VERDICTS, or for a claim that holds in one of the two numbers only, which one. `final` and
    `height` are the numbers behind it; of a further measure there is only `final`.
    """

    claim: Claim
    outcome: str
    final: str
    height: str = ""

    @property
    def contradicts(self) -> bool:
        """Whether the numbers speak against the claim."""
        return self.outcome == NOT_AS_EXPECTED

    @property
    def supports(self) -> bool:
        """Whether some number is beyond its interval where the claim says."""
        return self.outcome.startswith(AS_EXPECTED)


def verdict(findings: Sequence[Finding], *, complete: bool = True) -> str:
    """One of VERDICTS for several claims.

    A claim about the metric that was not measured, or on too few seeds, decides. `as expected` needs an interval
    beyond 0 in both numbers of every claim that one arm is above or below another, at least one such claim, and no
    number that speaks against another claim.

    Args:
        complete: False, if some arm is missing that the expectation speaks of; then nothing is wholly as expected.
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
    """What a study gave, as JSON: `comparison.json` and `measures.json` of its folder."""

    study: Study
    folder: Path
    comparison: Mapping[str, Any]
    measures: Mapping[str, Mapping[str, Mapping[str, float]]]

    @classmethod
    def read(cls, root: Path, study: Study) -> Results | None:
        """The results below the source checkout; None, if the study was not run yet."""
        folder = results_of(root, study)
        if not (folder / "comparison.json").exists():
            return None
        measures = folder / "measures.json"
        return cls(study, folder, _json(folder / "comparison.json"), _json(measures) if measures.exists() else {})

    # ---- numbers ------------------------------------------------------------------------------------------
    def arm(self, name: str) -> Mapping[str, Any]:
        """The numbers of one arm. Raises: UnknownName."""
        arms: Mapping[str, Any] = self.comparison["arms"]
        if name not in arms:
            raise UnknownName(where=f"study {self.study.name}", what=f"no arm is called `{name}`.", options=arms)
        return arms[name]  # type: ignore[no-any-return]

    def difference(self, arm: str, other: str, what: str = "final") -> Difference:
        """`arm` minus `other`, seed by seed. Args: what: `final`, or `area` for the mean height."""
        first, second = self.arm(arm)[what]["per_seed"], self.arm(other)[what]["per_seed"]
        return difference({int(k): v for k, v in first.items()}, {int(k): v for k, v in second.items()})

    def measured(self, arm: str) -> bool:
        """Whether the arm's value at the budget rests on an evaluation after the first.

        Curves are linear between evaluations. A curve that is one sloping line has its first evaluation, and the next
        one only where other arms had ended already: what it says of the budget was never measured.
        """
        return not any(_one_line(curve) for curve in self.arm(arm)["curves"].values())

    # ---- claims -------------------------------------------------------------------------------------------
    def findings(self) -> list[Finding]:
        """The study's claims, each held against the numbers."""
        return [self._of_measure(each) if each.measure else self._of_metric(each) for each in self.study.relations]

    @property
    def verdict(self) -> str:
        """The verdict on all of the study's claims."""
        return verdict(self.findings(), complete=not self.study.untested)

    def verdict_on(self, system: System) -> str | None:
        """The verdict on the claims whose first arm is of this system or variant; None, if there are none.

        Where every arm takes the system's overlay, all claims are about it.
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
        """The text with every reference replaced by its number. Raises: InvalidData, for one that leads nowhere."""
        return _REFERENCE.sub(lambda match: self._number(match[1], match[2] or ""), text)

    def _number(self, kind: str, of: str) -> str:
        try:
            return self._looked_up(kind, of)
        except (KeyError, TypeError, ValueError, OSError, UnknownName):
            raise InvalidData(
                where=f"{self.study.name}/seen.md",
                what=f"`{{{kind}{': ' if of else ''}{of}}}` leads to no number.",
                remedy="palaestra/catalogue/findings.py says which references there are.",
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


def _is_of(system: System, arm: str, layers: Sequence[str]) -> bool:
    return system.overlay in layers or arm.replace("-", "_") == system.name


def _one_line(curve: Sequence[float]) -> bool:
    """Whether equally spaced heights lie on one line that is not level."""
    heights = np.asarray(curve)
    spread = float(np.ptp(heights))
    straight = np.linspace(heights[0], heights[-1], len(heights))
    return spread > 1e-9 and float(np.abs(heights - straight).max()) < 1e-6 * spread


def _outcome(relation: str, verdicts: Mapping[str, str]) -> str:
    """What a relation's numbers say: number → higher, lower or no difference seen."""
    hoped = [name for name, found in verdicts.items() if found in _SIDES[relation]]
    against = [name for name, found in verdicts.items() if found in ("higher", "lower") and name not in hoped]
    if against:
        return f"{AS_EXPECTED} in the {hoped[0]}, the opposite in the {against[0]}" if hoped else NOT_AS_EXPECTED
    if not hoped:
        return NO_DIFFERENCE
    return AS_EXPECTED if len(hoped) == len(verdicts) else f"{AS_EXPECTED} in the {hoped[0]} only"


# ---- numbers as text ----------------------------------------------------------------------------------------
def decimal(value: float, sign: str = "") -> str:
    """Three decimals, one beyond 100; a small number that is not 0 keeps the digit and the sign that say so."""
    if abs(value) < 1e-6:
        return "0.000"
    if abs(value) < 0.0005:
        return f"{value:{sign}.1g}" if abs(value) >= 1e-4 else f"{value:{sign}.6f}"
    return f"{value:{sign}.{3 if abs(value) < 100 else 1}f}"


def significant(value: float) -> str:
    """Three digits that count; what is smaller than a millionth is 0."""
    if abs(value) < 1e-6:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(found: Mapping[str, float]) -> str:
    """A mean with its bounds."""
    return f"{decimal(found['mean'])} [{decimal(found['low'])}, {decimal(found['high'])}]"


def with_student(found: Difference) -> str:
    """A difference with Student's interval; of one seed the difference alone."""
    student = found.student
    if student is None:
        return decimal(next(iter(found.per_seed.values())), "+")
    return f"{decimal(student.value, '+')} [{decimal(student.low, '+')}, {decimal(student.high, '+')}]"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
