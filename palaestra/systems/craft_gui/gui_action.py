"""The reward of single actions on a screen: rules for what can be checked, a judge for the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from palaestra.data import Iteration, Row, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Fraction, NonNegative, Positive, register

WHERE = "reward: gui_action"
PLAIN = ("finish", "back", "home", "wait")  # types without an argument
TYPES = ("click", "type", "scroll", "answer", *PLAIN)
SIMILAR = 0.5  # edit similarity from which a text counts as right


@register(
    "reward",
    "gui_action",
    reads=("gesture", "references"),
    reads_if={"score=judge": ("judge?",)},
    writes=("reward", "gui_action"),
    source="arXiv 2508.11360, arXiv 2512.01763",
)
def gui_action(
    table: StepTable,
    iteration: Iteration,
    *,
    format: Fraction = 0.1,
    type: Fraction = 0.3,
    argument: Fraction = 0.6,
    judge: Fraction = 0.0,
    score: str = "judge",
    click: Literal["box", "distance"] = "box",
    reach: Positive = 140.0,
    text: Literal["f1", "edit"] = "f1",
    weight: NonNegative = 1.0,
    keep: NonNegative = 0.0,
    per: Literal["trajectory", "step"] = "trajectory",
) -> dict[str, Tensor]:
    """Pay each action for its form, its type and its argument.

        rule  = format · 1[readable] + type · 1[type right] + argument · arg          arg = 0 if the type is wrong
        R_k   = (1 − judge) · rule + judge · score_k
        r_k   = keep · reward_k + weight · R_k / T              T: steps of the trajectory, or 1 with per: step

    arg by type. click: 1[point in box]; or exp(−ln 2 · d / reach) for a distance d ≤ reach from the middle of the box,
    else 0. type: F1 of the words; or 1[edit similarity ≥ 0.5]. scroll: 1[direction right]. answer, to an open question:
    score_k. Types without an argument: 1. Several references: the best of them.

    A step's `info` has `gesture`, {type: click, point: [x, y]}, {type: type, text: …}, {type: scroll, direction: …} …,
    absent if the action could not be read; and `references`, a list of right actions, with a `box` [left, top, right,
    bottom] in place of a point. A judge's score is a further number of `info`, or a column that an earlier reward part
    writes.

    Args:
        format, type, argument: in [0, 1], weights that sum to 1. Usual: 0.1, 0.3, 0.6.
        judge: in [0, 1], share of the judge. 0: rules only.
        score: the column of the judge's scores, in [0, 1].
        click: how a click is compared with the box of a reference, "box" or "distance".
        reach: > 0, in units of the screen, the distance at which a click earns half. Usual: 140 of a thousand.
        text: how a typed text is compared with that of a reference, "f1" or "edit".
        weight: ≥ 0, weight of this reward; weight 0 with keep 1 leaves the reward unchanged.
        keep: ≥ 0, weight of the reward so far.
        per: "trajectory": an episode's actions together earn their mean, so that acting more often does not pay.
            "step": their sum, for episodes of one action.

    Returns: `reward`, and `gui_action`, R_k, each float32 (rows,).
    Metrics: gui/format, gui/type, gui/argument, means over steps.
    Raises: RecipeError, if format, type and argument do not sum to 1; InvalidData, for an unknown type, a box whose
        sides are swapped, a step without a reference, or a score outside [0, 1]; MissingColumn, without scores.
    """
    if not math.isclose(format + type + argument, 1.0, abs_tol=1e-6):
        raise RecipeError(
            where=WHERE,
            what=f"format {format}, type {type} and argument {argument} sum to {format + type + argument:g}.",
            remedy="Let them sum to 1, so that a right action earns 1.",
        )
    rules, counts = Rules(click=click, reach=reach, text=text, score=score), table.row_weight > 0
    shares = [_right_shares(row, table, rules) for row in iteration.rows]
    parts = torch.tensor(shares, dtype=torch.float64).reshape(-1, 3)
    means = parts[counts].mean(0) if bool(counts.any()) else torch.zeros(3, dtype=torch.float64)
    iteration.metrics |= dict(zip(("gui/format", "gui/type", "gui/argument"), means.tolist(), strict=True))
    worth = parts @ torch.tensor([format, type, argument], dtype=torch.float64)
    if judge:
        scores = torch.tensor([_score_of(row, table, score) for row in iteration.rows], dtype=torch.float64)
        worth = (1 - judge) * worth + judge * scores
    worth = torch.where(counts, worth, 0.0)
    steps = _steps(table, counts) if per == "trajectory" else torch.ones(len(table), dtype=torch.float64)
    reward = keep * table["reward"].double() + weight * worth / steps
    return {"reward": torch.where(counts, reward, 0.0).float(), "gui_action": worth.float()}


def _steps(table: StepTable, counts: Tensor) -> Tensor:
    """The number of counted steps of the row's trajectory, at least 1: float64 (rows,)."""
    key = table.key("trajectory")
    steps = torch.zeros(key.size, dtype=torch.float64).index_add_(0, key.codes, counts.double())
    return steps.clamp_min(1.0)[key.codes]


def _right_shares(row: Row, table: StepTable, rules: Rules) -> tuple[float, float, float]:
    """The shares of format, type and argument that are right, each in [0, 1]."""
    references = row.step.info.get("references")
    if not references:
        raise _fault(row, "the step has no reference.", "Let the environment give `references` of each step.")
    gesture = row.step.info.get("gesture")
    if gesture is None:
        return 0.0, 0.0, 0.0
    same = [one for one in references if _type_of(one, row) == _type_of(gesture, row)]
    if not same:
        return 1.0, 0.0, 0.0
    if gesture["type"] == "answer":
        return 1.0, 1.0, _score_of(row, table, rules.score)
    return 1.0, 1.0, max(rules.argument(gesture, one, row) for one in same)


def _score_of(row: Row, table: StepTable, column: str) -> float:
    score = float(table[column][row.index])
    if not 0 <= score <= 1:
        raise _fault(row, f"the judge's score `{column}` is {score:g}.", "Give scores in [0, 1].")
    return score


# ---- rules ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the argument of an action is compared with that of a reference of the same type.

    Attributes:
        click: "box" or "distance".
        reach: the distance at which a click earns half.
        text: "f1" or "edit".
        score: the column of the judge's scores, which is the argument of an answer.
    """

    click: str
    reach: float
    text: str
    score: str

    def argument(self, gesture: Mapping[str, Any], right: Mapping[str, Any], row: Row) -> float:
        """The share of the argument that is right, in [0, 1]."""
        kind = gesture["type"]
        if kind == "click":
            return self._click(gesture["point"], right["box"], row)
        if kind == "type":
            return f1(gesture["text"], right["text"]) if self.text == "f1" else edited(gesture["text"], right["text"])
        if kind == "scroll":
            return float(gesture["direction"] == right["direction"])
        return 1.0

    def _click(self, point: Sequence[float], box: Sequence[float], row: Row) -> float:
        (x, y), (left, top, right, bottom) = point, box
        if right < left or bottom < top:
            raise _fault(row, f"the box {list(box)} ends before it begins.", "Write [left, top, right, bottom].")
        if self.click == "box":
            return float(left <= x <= right and top <= y <= bottom)
        distance = math.hypot(x - (left + right) / 2, y - (top + bottom) / 2)
        return math.exp(-math.log(2) * distance / self.reach) if distance <= self.reach else 0.0


def f1(said: str, wanted: str) -> float:
    """F1 of the words of two texts, 1 if both are empty."""
    one, other = Counter(said.lower().split()), Counter(wanted.lower().split())
    if not one or not other:
        return float(one == other)
    return 2 * sum((one & other).values()) / (sum(one.values()) + sum(other.values()))


def edited(said: str, wanted: str) -> float:
    """1 if at most half of the longer text must be edited to turn one text into the other (Levenshtein), else 0."""
    said, wanted = said.lower(), wanted.lower()
    if not said and not wanted:
        return 1.0
    before = list(range(len(wanted) + 1))
    for i, letter in enumerate(said, start=1):
        now = [i]
        for j, other in enumerate(wanted, start=1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (letter != other)))
        before = now
    return float(1 - before[-1] / max(len(said), len(wanted)) >= SIMILAR)


def _type_of(gesture: Mapping[str, Any], row: Row) -> str:
    kind = str(gesture.get("type"))
    if kind not in TYPES:
        raise InvalidData(
            where=_place(row),
            what=f"`{kind}` is not a known type of action.",
            options=TYPES,
            remedy="Use one of these types in `gesture` and `references`.",
        )
    return kind


def _fault(row: Row, what: str, remedy: str) -> InvalidData:
    return InvalidData(where=_place(row), what=what, remedy=remedy)


def _place(row: Row) -> str:
    return f"{WHERE}, trajectory {row.trajectory.id}, turn {row.step.turn}"
