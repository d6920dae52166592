"""Populations of instructions:

1. Probabilities and weights have the numbers of the definition.
2. Each group plays under one instruction, and a second run samples the same ones.
3. One member without reflection is plain GRPO bit for bit.
4. Reflection drops, tries and joins, and what it plays counts as spent.
5. The state is saved and restored.
6. Bad populations, plays that have an instruction already, and mixed groups are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.inspo import InstructionPopulation, draw_probabilities, moved, refuse_mixed
from tests.rollout.arena import Arena, same


def test_numbers_of_populations() -> None:  # rule 1
    assert draw_probabilities([0.6, 0.4, 0.2], 0.2).round(4).tolist() == [0.6652, 0.2447, 0.09]
    assert moved(0.4, 0.75, pace=0.3) == pytest.approx(0.505)


def test_one_instruction_a_group(tiny: Any) -> None:  # rules 1, 2
    arena = Arena(tiny, edits=1)
    population = InstructionPopulation(instructions=("look at line 1.", ""), every=None, pace=0.5)
    rollout = arena.rollout()
    found = arena.run(population, arena.plays(8), rollout)
    told = {t.group: {s.observation.instruction for s in t.steps} for t in found}
    assert all(len(texts) == 1 for texts in told.values())
    assert {texts.pop() for texts in told.values()} == {"look at line 1.", None}
    assert [member.weight for member in population.members] == [0.25, 0.25]  # every episode failed
    assert {t.info["instruction"] for t in found} == {"look at line 1.", ""}
    assert rollout.metrics["instruction/size"] == 2 and rollout.metrics["instruction/0/probability"] == 0.5
    again = InstructionPopulation(instructions=("look at line 1.", ""), every=None)
    assert same(found, arena.run(again, arena.plays(8), arena.rollout()))
    alone = InstructionPopulation(instructions=("a", "b", "c"), every=None, pace=1.0)
    arena.run(alone, arena.plays(1), arena.rollout())
    assert sorted(member.weight for member in alone.members) == [0.0, 0.5, 0.5]  # members not sampled keep theirs


def test_one_member_is_plain(tiny: Any) -> None:  # rule 3
    arena, plays = Arena(tiny), Arena(tiny).plays()
    alone = InstructionPopulation(instructions=("",), every=None)
    assert same(arena.run(alone, plays, arena.rollout()), arena.runner.collect(plays)) and alone.instruction is None


def test_reflection(tiny: Any) -> None:  # rules 4, 5
    arena = Arena(tiny, edits=1)
    options: dict[str, Any] = {"instructions": ("a", "b", "c", "d"), "every": 2, "most": 5, "least": 2, "drop": 0.5}
    population = InstructionPopulation(**options, pool=("e", "f", "a"), candidates=6, verify=3)
    for member, weight in zip(population.members, (0.9, 0.1, 0.8, 0.2), strict=True):
        member.weight = weight
    population._pace = 0.0
    first = arena.rollout(step=0)
    arena.run(population, arena.plays(), first)
    assert len(first.played) == 4 and "instruction/verified" not in first.metrics
    second = arena.rollout(step=1)
    kept = arena.run(population, arena.plays(), second)
    assert [member.text for member in population.members][:2] == ["a", "c"]
    assert {member.text for member in population.members[2:]} == {"e", "f"}
    assert [member.number for member in population.members] == [0, 2, 4, 5]
    assert [member.weight for member in population.members[2:]] == [0.0, 0.0]
    assert second.metrics["instruction/verified"] == 2 and len(second.played) == len(kept) + 2 * 3
    assert population.instruction == "a"
    assert len(population.failures) == 8 and population.failures[0].transcript.count(">") == 1
    other = InstructionPopulation(**options, pool=("e",))
    other.load_state_dict(population.state_dict())
    assert other.members == population.members and other.failures == population.failures
    torch.save(population.state_dict(), "/dev/null")


def written(instruction: str, failures: Sequence[Any], seed: int) -> str:
    return f"{instruction} {len(failures)} {failures[0].instruction if failures else ''}".strip()


def test_a_proposer_of_ones_own(tiny: Any) -> None:  # rule 4
    arena = Arena(tiny, edits=1)
    population = InstructionPopulation(
        instructions=("a",), every=1, least=1, candidates=1, shown=2, proposer=f"{__file__}:written"
    )
    arena.run(population, arena.plays(), arena.rollout())
    assert [member.text for member in population.members] == ["a", "a 2 a"]


def test_bad_populations(tiny: Any) -> None:  # rule 6
    for options, fault in (
        ({"instructions": ()}, "`instructions` is empty"),
        ({"instructions": ("a", "b", "a")}, "`instructions` has 'a' twice"),
        ({"instructions": ("a",), "temperature": 0}, "cannot take `temperature: 0"),
        ({"instructions": ("a",)}, "neither `proposer` nor `pool` is set"),
    ):
        with pytest.raises(RecipeError, match=fault):
            InstructionPopulation(**{"every": 5, **options})  # type: ignore[arg-type]
    arena = Arena(tiny, edits=1)
    with pytest.raises(InvalidData, match="has an instruction already: 'go'"):
        arena.run(
            InstructionPopulation(instructions=("a",), every=None), arena.plays(instruction="go"), arena.rollout()
        )
    mixed = [*arena.runner.collect(arena.plays(1, 1)), *arena.runner.collect(arena.plays(1, 1, instruction="go"))]
    with pytest.raises(InvalidData, match="2 different instructions"):
        refuse_mixed(mixed)


def test_rules_of_roles_are_no_mixture(tiny: Any) -> None:  # rule 6
    arena = Arena(tiny)
    played = arena.runner.collect(arena.plays(1, 2, instruction="go"))
    for one in played:
        first, *others = one.steps
        first.observation.instruction = "The rules, told once.\n\ngo"  # by the environment
        for step in others[1:]:
            step.agent, step.observation.instruction = "other", "Judge.\n\ngo"  # by another role's recipe
    assert len(played) == 2 and all(len(one.steps) > 2 for one in played)
    refuse_mixed(played)
