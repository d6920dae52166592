"""Strategies that say something to agents: (1) a second attempt inside a population has both, its guidance behind the
instruction, and the kept prompt has the instruction alone.
"""

from __future__ import annotations

from typing import Any

from palaestra.systems.agent_rlvr.second_attempt import SecondAttempt
from palaestra.systems.inspo import InstructionPopulation
from tests.rollout.arena import Arena


def test_strategies_may_be_inside_one_another(tiny: Any) -> None:  # rule 1
    arena = Arena(tiny, edits=1)
    rollout, plays = arena.rollout(), arena.plays()
    population = InstructionPopulation(instructions=("a",), every=None)
    found = arena.runner.perform(plays, [population, SecondAttempt()], rollout)
    assert len(found) == 8 and {s.observation.instruction for t in found for s in t.steps} == {"a"}
    assert rollout.played[-1].steps[0].observation.instruction.startswith("a ")  # type: ignore[union-attr]
