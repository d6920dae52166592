"""Loops in which one role looks at what another did, each rule pinned by a test of the same number.

1.  The last proposal goes to the environment; an accepted one ends the loop, and nobody is asked after it.
2.  A verdict that cannot be read is invalid and rejects; a role's own parser reads it where there is one.
3.  The verifier reads the task and the proposal, the solver its proposal and the criticism, nobody more.
4.  With a solver that is right with probability a, and a verifier that finds faults with t and false alarms f, K
    verdicts give S_K = a(1 − f) + [a f + (1 − a) t] S_{K−1}, S_0 = a.
5.  Demonstrations with noise show what a rejection looks like; the wrong proposal is not to be learned.
6.  An environment whose agents act at once is refused.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from palaestra.data import Observation
from palaestra.rollout.roles import Role
from palaestra.teams.demonstration import spoiled
from palaestra.teams.loop import demonstrate, solver_verifier, verdict
from palaestra.teams.parsers import tagged
from palaestra.testing import EchoEnvironment, ScriptedPolicy
from tests.teams.playing import acts, play, right, shown_to, told_word


def judge(turn: int, seen: Observation) -> str:
    return "accept" if (seen.text or "").endswith(told_word(seen)) else "reject, look again"


def second_try(turn: int, seen: Observation) -> str:
    return "mud" if turn == 0 else told_word(seen)


def test_1_the_last_proposal_counts() -> None:
    (played,) = play(solver_verifier, {"solver": second_try, "verifier": judge})
    word = told_word(played.steps[0].observation)
    assert acts(played) == [
        ("solver", "mud"),
        ("verifier", "reject, look again"),
        ("solver", word),
        ("verifier", "accept"),
    ]
    assert (played.outcome, played.returns) == (1.0, {"solver": 1.0})
    assert played.info["proposals"] == 2
    assert played.info["accepted"] is True
    (stubborn,) = play(solver_verifier, {"solver": ["a", "b", "c"], "verifier": judge}, options={"rounds": 2})
    assert [said for name, said in acts(stubborn) if name == "solver"] == ["a", "b", "c"]
    assert stubborn.info["accepted"] is False


def test_2_unreadable_verdicts() -> None:
    (played,) = play(solver_verifier, {"solver": right, "verifier": ["hm", "yes"]})
    assert [step.info.get("invalid", 0.0) for step in played.steps] == [0.0, 1.0, 0.0, 0.0]
    said = ["well <verify>approve</verify>"]
    parsed = Role(policy=ScriptedPolicy(said), parser=functools.partial(tagged, tag="verify"))
    (read,) = play(solver_verifier, {"solver": right}, roles={"verifier": parsed})
    assert len(read.steps) == 2
    assert not any(step.info.get("invalid") for step in read.steps)
    assert (verdict("No."), verdict("noble"), verdict("")) == ("no", None, None)


def test_3_who_reads_what() -> None:
    (played,) = play(solver_verifier, {"solver": second_try, "verifier": judge})
    word = told_word(played.steps[0].observation)
    assert shown_to(played, "verifier") == [["proposal: mud"], [f"proposal: {word}"]]
    assert shown_to(played, "solver") == [[], ["proposal: mud", "verifier: reject, look again"]]
    assert [step.info.get("reads") for step in played.steps] == [None, (0,), (1,), (2,)]


@pytest.mark.parametrize(("t", "f", "rounds"), [(0.8, 0.1, 3), pytest.param(0.5, 0.5, 2, marks=pytest.mark.slow)])
def test_4_closed_form(t: float, f: float, rounds: int) -> None:
    a, n, best = 0.6, 4000, 0.6
    for _ in range(rounds):
        best = a * (1 - f) + (a * f + (1 - a) * t) * best
    draw = np.random.default_rng(7)

    def solve(turn: int, seen: Observation) -> str:
        return told_word(seen) if draw.random() < a else "mud"

    def look(turn: int, seen: Observation) -> str:
        wrong = (seen.text or "").endswith("mud")
        return "reject" if draw.random() < (t if wrong else f) else "accept"

    played = play(solver_verifier, {"solver": solve, "verifier": look}, count=n, options={"rounds": rounds})
    found = sum(one.outcome or 0.0 for one in played) / n
    assert abs(found - best) <= 3 * math.sqrt(best * (1 - best) / n)


def test_5_demonstrations() -> None:
    clean, mended = (
        play(demonstrate, {"solver": right, "verifier": judge}, options={"noise": noise})[0] for noise in (0.0, 1.0)
    )
    word = told_word(clean.steps[0].observation)
    assert acts(clean) == [("solver", word), ("verifier", "accept")]
    assert acts(mended) == [("solver", "?"), ("verifier", "reject"), ("solver", word), ("verifier", "accept")]
    assert [step.marks.noise or 0.0 for step in mended.steps] == [1.0, 0.0, 0.0, 0.0]
    assert mended.outcome == 1.0
    draw = np.random.default_rng(0)
    assert {spoiled("x = 7", draw) for _ in range(200)} == {f"x = {digit}" for digit in range(10) if digit != 7}
    assert spoiled("red door", draw) == "red"


def test_6_agents_that_act_at_once() -> None:
    pair = functools.partial(EchoEnvironment, turns=1, agents=("a", "b"))
    (played,) = play(solver_verifier, {"solver": right, "verifier": judge}, environment=pair)
    assert played.error is not None
    assert "asks 2 at once" in played.error.message
