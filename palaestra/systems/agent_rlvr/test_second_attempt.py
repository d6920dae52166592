"""Second attempts:

1. A failed attempt is played again with guidance, as a further sample of its group.
2. The kept prompt is the prompt without guidance, token for token, and its rows are marked foreign.
3. Guidance tokens are never part of a response.
4. With share 0 the groups are the plain ones, bit for bit.
5. An attempt without an outcome has failed if a limit cut it; otherwise it is not known. It gets a second attempt.
6. Guidance that contains the answer and environments without guidance are refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from palaestra.data import StepTable, StopReason, Trajectory
from palaestra.errors import ContractError
from palaestra.systems.agent_rlvr.second_attempt import SecondAttempt
from tests.rollout.arena import Arena, same


def test_second_attempts(tiny: Any) -> None:  # rules 1, 2, 3
    arena = Arena(tiny, edits=2)
    rollout, plays = arena.rollout(), arena.plays()
    found = arena.run(SecondAttempt(), plays, rollout)
    assert [(t.group, t.sample) for t in found] == [("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)] + [
        (group, sample) for group in ("g0", "g1") for sample in (2, 3)
    ]
    assert rollout.metrics == {
        "guidance/attempts": 1.0,
        "guidance/before": 0.0,
        "guidance/after": 0.0,
        "guidance/success": 0.0,
    }
    assert len(rollout.played) == 8
    for kept, attempt in zip(found[4:], rollout.played[4:], strict=True):
        assert "look at line" in str(attempt.steps[0].observation.instruction)
        assert kept.info["guidance"] == attempt.steps[0].observation.instruction
        head = tiny.renderer.instruction(kept.info["guidance"]).tolist()
        for now, then in zip(kept.steps, attempt.steps, strict=True):
            assert then.prompt.tolist() == head + now.prompt.tolist()  # each turn is a segment here
            assert now.action.tokens is then.action.tokens and now.observation.instruction is None
            assert now.marks.foreign == 1.0 == now.marks.guided and then.marks.foreign is None
    table = StepTable.from_trajectories(found)
    assert table["foreign"].tolist() == table["guided"].tolist() and 0 < float(table["foreign"].mean()) < 1
    assert int(table["token_count"].sum()) == sum(len(s.action.tokens) for t in found for s in t.steps)


def test_guidance_may_stay(tiny: Any) -> None:  # rule 2
    arena = Arena(tiny, edits=1)
    rollout = arena.rollout()
    found = arena.run(SecondAttempt(keep_guidance=True), arena.plays(), rollout)
    assert found[4] is rollout.played[4] and found[4].steps[0].marks.guided == 1.0
    assert "foreign" not in StepTable.from_trajectories(found)


def test_no_guidance_is_plain_groups(tiny: Any) -> None:  # rule 4
    arena, plays = Arena(tiny), Arena(tiny).plays()
    assert same(arena.run(SecondAttempt(share=0.0), plays, arena.rollout()), arena.runner.collect(plays))
    some = arena.run(SecondAttempt(share=0.5), arena.plays(8), arena.rollout())
    assert 16 < len(some) < 32
    assert same(some, arena.run(SecondAttempt(share=0.5), arena.plays(8), arena.rollout()))


def test_who_succeeded_or_failed_otherwise_has_one_attempt(tiny: Any) -> None:  # rule 1
    strategy, arena = SecondAttempt(), Arena(tiny)
    won = Trajectory(task=arena.plays()[0].task, group="g0", outcome=1.0)
    unknown = dataclasses.replace(won, outcome=None)
    assert not strategy._failed(won) and not strategy._failed(unknown)
    assert strategy._failed(dataclasses.replace(won, outcome=0.0))


def test_attempts_that_the_turn_limit_cuts(tiny: Any) -> None:  # rule 5
    arena = Arena(tiny, edits=9)  # more edits than the four turns of the rollout
    found = arena.run(SecondAttempt(), arena.plays(), arena.rollout())
    first, second = found[:4], found[4:]
    assert {(one.stop, one.outcome) for one in first} == {(StopReason.MAX_TURNS, None)} and len(second) == 4
    assert all(one.info["guidance"] for one in second)
    unknown = dataclasses.replace(first[0], stop=StopReason.COMPLETED)
    assert not SecondAttempt()._failed(unknown)
    assert not SecondAttempt()._failed(dataclasses.replace(first[0], stop=StopReason.ERROR))


def test_leaks_are_refused(tiny: Any) -> None:  # rule 6
    arena = Arena(tiny, edits=1, teacher=["patch"])
    with pytest.raises(ContractError, match=r"the guidance contains the whole answer: 'set \d \w+ \d\.'"):
        arena.run(SecondAttempt(), arena.plays(), arena.rollout())
    assert len(arena.run(SecondAttempt(allow_leak=True), arena.plays(), arena.rollout())) == 8
    with pytest.raises(ContractError, match="environment `codefix` gives no guidance"):
        arena.run(SecondAttempt(), arena.plays(), arena.rollout(source=object()))
