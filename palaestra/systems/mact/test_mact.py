"""The program `mact`:

1. The answer uses work that is judged correct; a flag sends it back to the role that it blames, or to the planner first
   if it blames both.
2. Each role reads what it needs: earlier mistakes go to planner, executor and answerer, never to the judge. A step says
   which judgments it has read, also where others came later, so that the judge has a share in what follows from them.
3. There are at most N_c judgments and N_c + 1 passes; with N_c = 0 the judge does not act.
4. A judgment that cannot be read, or that names no mistake, is invalid and goes to the executor.
5. K judgments by a judge of known error rates give S_K of the closed form.
6. Demonstrations show both kinds of mistakes and mark wrong work as noise. Without corrections the judge does not act.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from palaestra.data import Observation, StepTable
from palaestra.systems.descendants.messages import descendant_return, readings_of
from palaestra.systems.mact import demonstrate, judgment, mact
from tests.teams.playing import acts, demonstrated, play, right, shown_to, told_word


def copied(turn: int, seen: Observation) -> str:
    """The last process, as it was read."""
    return (seen.text or "").rsplit("process: ", 1)[1]


def team(judge: Any, **others: Any) -> dict[str, Any]:
    return {"planner": ["p0", "p1", "p2"], "executor": ["e0", "e1", "e2"], "judge": judge, "answerer": copied} | others


def test_1_whose_mistake() -> None:
    for said, order in (
        (["correct"], "pejpejpe"[:3]),
        (["plan: no", "correct"], "pejpej"),
        (["execute: no", "correct"], "pejej"),
        (["plan and execute: no", "execute: no", "correct"], "pejpejej"),
    ):
        (played,) = play(mact, team(said))
        assert "".join(name[0] for name, _ in acts(played)) == order + "a"
    assert (played.info["corrections"], played.info["both"]) == (2, 1)
    (good,) = play(mact, team(["correct"], executor=right))
    assert (good.outcome, good.returns) == (1.0, {"answerer": 1.0})


def test_2_who_reads_what() -> None:
    (played,) = play(mact, team(["plan: too long", "correct"]))
    wrong = "wrong: e0 (plan: too long)"
    assert shown_to(played, "planner") == [[], [wrong]]
    assert shown_to(played, "executor") == [["plan: p0"], [wrong, "plan: p1"]]
    assert shown_to(played, "judge") == [["plan: p0", "process: e0"], ["plan: p1", "process: e1"]]
    assert shown_to(played, "answerer") == [[wrong, "process: e1"]]
    assert [step.info.get("reads") for step in played.steps] == [None, (0,), (0, 1), (2,), (2, 3), (3, 4), (2, 4)]


def test_2_the_judge_has_a_share() -> None:
    (played,) = play(mact, team(["execute: a", "execute: b", "correct"], executor=["e0", "e1", "mud"], answerer=right))
    reads = {step.turn: step.info.get("reads") for step in played.steps}
    assert (reads[3], reads[5], reads[7]) == ((2, 0), (2, 4, 0), (2, 4, 5))  # no role reads the last judgment
    table = StepTable.from_trajectories([played])
    readings = readings_of(table, own=False, replies=False, where="test")
    assert descendant_return(table, readings, gamma=1.0).tolist() == [1.0] * 6 + [0.0, 1.0]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_3_at_most(most: int) -> None:
    (played,) = play(mact, team(["execute: no"]), options={"corrections": most})
    names = [name for name, _ in acts(played)]
    assert (names.count("judge"), names.count("executor"), names.count("planner")) == (most, most + 1, 1)


def test_4_unreadable() -> None:
    (played,) = play(mact, team(["plan", "hm", "Correct."]))
    assert "".join(name[0] for name, _ in acts(played)) == "pejejeja"
    assert [s.info.get("invalid", 0.0) for s in played.steps if s.agent == "judge"] == [1.0, 1.0, 0.0]
    assert judgment("plan:  ") is None


@pytest.mark.slow
@pytest.mark.parametrize(("t", "f"), [(0.8, 0.1), (0.5, 0.5)])
def test_5_closed_form(t: float, f: float) -> None:
    a, n, best, draw = 0.6, 4000, 0.6, np.random.default_rng(5)
    for _ in range(3):
        best = a * (1 - f) + (a * f + (1 - a) * t) * best

    def execute(turn: int, seen: Observation) -> str:
        return told_word(seen) if draw.random() < a else "mud"

    def judge(turn: int, seen: Observation) -> str:
        wrong = (seen.text or "").endswith("mud")
        return "execute: no" if draw.random() < (t if wrong else f) else "correct"

    played = play(mact, team(judge, executor=execute), count=n)
    found = sum(one.outcome or 0.0 for one in played) / n
    assert abs(found - best) <= 3 * math.sqrt(best * (1 - best) / n)


def test_6_demonstrations() -> None:
    (clean,) = play(demonstrate, team(["correct"]))
    word = told_word(clean.steps[0].observation)
    assert [said for _, said in acts(clean)] == [word, word, "correct", word]
    mended = play(demonstrate, team(["correct"]), count=8, options={"noise": 1.0})
    assert {len(one.steps) for one in mended} == {6, 7}
    for one in mended:
        assert one.outcome == 1.0
        assert all(s.marks.noise == float("?" in (s.action.text or "")) for s in one.steps if s.marks.noise is not None)
        assert [s.action.text for s in one.steps if s.agent == "judge"][-1] == "correct"


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_6_nobody_judges(noise: float) -> None:
    (clean,) = demonstrated(mact, team(["correct"]), options={"corrections": 0}, noise=noise)
    assert [name for name, _ in acts(clean)] == ["planner", "executor", "answerer"]
    assert clean.outcome == 1.0
