"""Strategies that say something to agents, or tell what happened anew.

Second attempts: (1) who failed plays again with guidance, as further samples of its group; (2) the kept prompt is the
one without guidance, token for token, and marked foreign; (3) guidance tokens are never responses; (4) share 0 is plain
groups bit for bit; (5) answers in guidance, and environments without a teacher, are refused.
Populations: (6) probabilities and weights by numbers; (7) one instruction a group, drawn again alike; (8) one
member and no reflection is plain GRPO bit for bit; (9) reflection drops, tries and joins, and what it plays is spent;
(10) state survives; (11) bad populations, doubly instructed plays and mixed groups are refused.
Twins: (12) the same actions behind the whole history; (13) where both branches agree there is none; (14) without
compression it is refused; (15) lengths of histories by numbers, and drawn per episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.chat import FullHistory, LatestOnly
from palaestra.data import Observation, StepTable, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.envs.probes.codefix import CodeFix
from palaestra.errors import ContractError, InvalidData, RecipeError
from palaestra.rollout.field import Field, play_through
from palaestra.rollout.programs import play as playing
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.stage import Play, Role, Stage
from palaestra.systems.agent_rlvr.second_attempt import SecondAttempt
from palaestra.systems.hicon_agent.sampled_history import SampledHistory, history_probabilities
from palaestra.systems.hicon_agent.strategy import DualBranch
from palaestra.systems.inspo import InstructionPopulation, draw_probabilities, moved, refuse_mixed

AGENT = "programmer"


class Arena:
    """Strategies on CodeFix with a tiny policy that has learned nothing."""

    def __init__(self, policy: Any, *, context: Any = None, **options: Any) -> None:
        self.source, self.settings = CodeFix(**options), RolloutSettings(max_turns=4, response_tokens=5)
        self.stage = Stage(
            environment_name="codefix",
            make_environment=lambda: CodeFix(**options),
            roles={"*": Role(policy=policy, context=context or LatestOnly())},
            program=playing,
            environment_options=options,
        )
        self.runner = EpisodeRunner(self.stage, self.settings)

    def plays(self, groups: int = 2, samples: int = 2, first: int = 0, **more: Any) -> list[Play]:
        tasks = self.source.tasks("train", first + groups, 0)[first:]
        return [
            Play(task=task, group=f"g{first + i}", sample=sample, seed=10 * (first + i) + sample, **more)
            for i, task in enumerate(tasks)
            for sample in range(samples)
        ]

    def field(self, step: int = 0, source: Any = None) -> Field:
        return Field(
            supply=lambda groups: self.plays(groups, first=50),
            settings=self.settings,
            sampling=self.runner.sampling(),
            policies={},
            step=step,
            seed=7 + step,
            stage=self.stage,
            source=self.source if source is None else source,
        )

    def run(self, strategy: Any, plays: Sequence[Play], field: Field) -> list[Trajectory]:
        return self.runner.perform(lambda collect: play_through([strategy], collect)(plays, field))


def same(one: Sequence[Trajectory], other: Sequence[Trajectory]) -> bool:
    def told(trajectory: Trajectory) -> Any:
        steps = [(s.turn, s.prompt.tolist(), s.action.tokens.tolist(), s.segment, s.reward) for s in trajectory.steps]
        return trajectory.id, steps, trajectory.outcome

    return list(map(told, one)) == list(map(told, other))


# ---- second attempts --------------------------------------------------------------------------------------
def test_second_attempts(tiny: Any) -> None:  # rules 1, 2, 3
    arena = Arena(tiny, edits=2)
    field, plays = arena.field(), arena.plays()
    found = arena.run(SecondAttempt(), plays, field)
    assert [(t.group, t.sample) for t in found] == [("g0", 0), ("g0", 1), ("g1", 0), ("g1", 1)] + [
        (group, sample) for group in ("g0", "g1") for sample in (2, 3)
    ]
    assert field.metrics == {
        "guidance/attempts": 1.0,
        "guidance/before": 0.0,
        "guidance/after": 0.0,
        "guidance/success": 0.0,
    }
    assert len(field.played) == 8
    for kept, attempt in zip(found[4:], field.played[4:], strict=True):
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
    field = arena.field()
    found = arena.run(SecondAttempt(keep_guidance=True), arena.plays(), field)
    assert found[4] is field.played[4] and found[4].steps[0].marks.guided == 1.0
    assert "foreign" not in StepTable.from_trajectories(found)


def test_no_guidance_is_plain_groups(tiny: Any) -> None:  # rule 4
    arena, plays = Arena(tiny), Arena(tiny).plays()
    assert same(arena.run(SecondAttempt(share=0.0), plays, arena.field()), arena.runner.collect(plays))
    some = arena.run(SecondAttempt(share=0.5), arena.plays(8), arena.field())
    assert 16 < len(some) < 32
    assert same(some, arena.run(SecondAttempt(share=0.5), arena.plays(8), arena.field()))


def test_who_succeeded_or_failed_otherwise_has_one_attempt(tiny: Any) -> None:  # rule 1
    strategy, arena = SecondAttempt(), Arena(tiny)
    won = Trajectory(task=arena.plays()[0].task, group="g0", outcome=1.0)
    unknown = dataclasses.replace(won, outcome=None)
    assert not strategy._failed(won) and not strategy._failed(unknown)
    assert strategy._failed(dataclasses.replace(won, outcome=0.0))


def test_leaks_are_refused(tiny: Any) -> None:  # rule 5
    arena = Arena(tiny, edits=1, teacher=["patch"])
    with pytest.raises(ContractError, match=r"the guidance holds the whole answer: 'set \d \w+ \d\.'"):
        arena.run(SecondAttempt(), arena.plays(), arena.field())
    assert len(arena.run(SecondAttempt(allow_leak=True), arena.plays(), arena.field())) == 8
    with pytest.raises(ContractError, match="environment `codefix` has no teacher"):
        arena.run(SecondAttempt(), arena.plays(), arena.field(source=object()))


# ---- populations ------------------------------------------------------------------------------------------
def test_numbers_of_populations() -> None:  # rule 6
    assert draw_probabilities([0.6, 0.4, 0.2], 0.2).round(4).tolist() == [0.6652, 0.2447, 0.09]
    assert moved(0.4, 0.75, pace=0.3) == pytest.approx(0.505)


def test_one_instruction_a_group(tiny: Any) -> None:  # rules 6, 7
    arena = Arena(tiny, edits=1)
    population = InstructionPopulation(instructions=("look at line 1.", ""), every=None, pace=0.5)
    field = arena.field()
    found = arena.run(population, arena.plays(8), field)
    told = {t.group: {s.observation.instruction for s in t.steps} for t in found}
    assert all(len(texts) == 1 for texts in told.values())
    assert {texts.pop() for texts in told.values()} == {"look at line 1.", None}
    assert [member.weight for member in population.members] == [0.25, 0.25]  # nobody succeeded
    assert {t.info["instruction"] for t in found} == {"look at line 1.", ""}
    assert field.metrics["instruction/size"] == 2 and field.metrics["instruction/0/probability"] == 0.5
    again = InstructionPopulation(instructions=("look at line 1.", ""), every=None)
    assert same(found, arena.run(again, arena.plays(8), arena.field()))
    alone = InstructionPopulation(instructions=("a", "b", "c"), every=None, pace=1.0)
    arena.run(alone, arena.plays(1), arena.field())
    assert sorted(member.weight for member in alone.members) == [0.0, 0.5, 0.5]  # who is not drawn keeps its weight


def test_one_member_is_plain(tiny: Any) -> None:  # rule 8
    arena, plays = Arena(tiny), Arena(tiny).plays()
    alone = InstructionPopulation(instructions=("",), every=None)
    assert same(arena.run(alone, plays, arena.field()), arena.runner.collect(plays)) and alone.instruction is None


def test_reflection(tiny: Any) -> None:  # rules 9, 10
    arena = Arena(tiny, edits=1)
    options: dict[str, Any] = {"instructions": ("a", "b", "c", "d"), "every": 2, "most": 5, "least": 2, "drop": 0.5}
    population = InstructionPopulation(**options, pool=("e", "f", "a"), candidates=6, verify=3)
    for member, weight in zip(population.members, (0.9, 0.1, 0.8, 0.2), strict=True):
        member.weight = weight
    population._pace = 0.0
    first = arena.field(step=0)
    arena.run(population, arena.plays(), first)
    assert len(first.played) == 4 and "instruction/verified" not in first.metrics
    second = arena.field(step=1)
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


def test_a_proposer_of_ones_own(tiny: Any) -> None:  # rule 9
    arena = Arena(tiny, edits=1)
    population = InstructionPopulation(
        instructions=("a",), every=1, least=1, candidates=1, shown=2, proposer=f"{__file__}:written"
    )
    arena.run(population, arena.plays(), arena.field())
    assert [member.text for member in population.members] == ["a", "a 2 a"]


def test_bad_populations(tiny: Any) -> None:  # rule 11
    for options, fault in (
        ({"instructions": ()}, "the population is empty"),
        ({"instructions": ("a", "b", "a")}, "the instruction 'a' is there twice"),
        ({"instructions": ("a",), "temperature": 0}, "cannot take `temperature: 0"),
        ({"instructions": ("a",)}, "nobody writes any"),
    ):
        with pytest.raises(RecipeError, match=fault):
            InstructionPopulation(**{"every": 5, **options})  # type: ignore[arg-type]
    arena = Arena(tiny, edits=1)
    with pytest.raises(InvalidData, match="has an instruction already: 'go'"):
        arena.run(InstructionPopulation(instructions=("a",), every=None), arena.plays(instruction="go"), arena.field())
    mixed = [*arena.runner.collect(arena.plays(1, 1)), *arena.runner.collect(arena.plays(1, 1, instruction="go"))]
    with pytest.raises(InvalidData, match="2 different instructions"):
        refuse_mixed(mixed)


# ---- twins ------------------------------------------------------------------------------------------------
def test_twins(tiny: Any) -> None:  # rule 12
    arena = Arena(tiny, context=SampledHistory(most=2, lam=9.0, compress=True), edits=4, lines=2, numbers=2)
    field = arena.field()
    found = arena.run(DualBranch(), arena.plays(2, 2), field)
    played, twins = found[:4], found[4:]
    assert len(twins) == 4 and field.metrics["branch/twins"] == 1.0 and field.metrics["branch/read"] < 1
    whole = Arena(tiny, context=SampledHistory(most=2, lam=9.0)).stage.role(AGENT)
    for one, twin in zip(played, twins, strict=True):
        assert (twin.group, twin.sample) == (one.group, one.sample + 2)
        session = whole.policy.session(context=whole.context, sampling=Sampling(), key=(one.group, one.sample, AGENT))
        past: list[int] = []
        for now, then in zip(twin.steps, one.steps, strict=True):
            taken = session.replay(then.observation, then.action)  # type: ignore[attr-defined]
            assert np.array_equal(taken.prompt, now.prompt) and taken.segment == now.segment
            assert now.action.tokens is then.action.tokens
            seen = tiny.renderer.observation(then.observation, first=True).tolist()
            assert one.prompt_of(then).tolist() == past + seen  # all past actions and the present observation
            past += then.action.tokens.tolist()
            assert (then.marks.branch, now.marks.branch, now.marks.foreign) == (0.0, 1.0, 1.0)
            assert then.marks.twin == now.marks.twin == one.sample
    assert len(field.played) == 4
    StepTable.from_trajectories(found)


@pytest.mark.parametrize("options", [{"edits": 1}, {"edits": 3, "most": 0}])
def test_no_twin_where_branches_agree(tiny: Any, options: dict[str, Any]) -> None:  # rule 13
    context = SampledHistory(most=options.pop("most", 2), compress=True)
    arena, plays = Arena(tiny, context=context, **options), Arena(tiny, **options).plays()
    assert same(arena.run(DualBranch(), plays, arena.field()), arena.runner.collect(plays))


@pytest.mark.parametrize("context", [FullHistory(), SampledHistory()])
def test_uncompressed_contexts_are_refused(tiny: Any, context: Any) -> None:  # rule 14
    arena = Arena(tiny, context=context)
    with pytest.raises(ContractError, match="no history is compressed: programmer"):
        arena.run(DualBranch(), arena.plays(1, 1), arena.field())


def test_lengths_of_histories() -> None:  # rule 15
    assert history_probabilities(2, 1.0).round(4).tolist() == [0.09, 0.2447, 0.6652]
    assert history_probabilities(2, 0.0).tolist() == [1 / 3] * 3 and history_probabilities(0, 1.0).tolist() == [1.0]
    drawn = [SampledHistory().drawn(("g", i, AGENT)) for i in range(600)]
    assert abs(drawn.count(2) / 600 - 0.6652) < 0.06 and {*drawn} == {0, 1, 2}
    assert drawn == [SampledHistory().drawn(("g", i, AGENT)) for i in range(600)]
    with pytest.raises(RecipeError, match="cannot take `most: -1"):
        SampledHistory(most=-1)


def test_responses_anchor_the_history(tiny: Any) -> None:  # rule 15
    talk = SampledHistory().start(tiny.renderer)
    talk.observe(Observation(text="x"))
    with pytest.raises(InvalidData, match="a response has no tokens"):
        talk.respond(np.zeros(0, np.int32))


def test_strategies_may_be_inside_one_another(tiny: Any) -> None:  # rules 2, 7
    arena = Arena(tiny, edits=1)
    field, plays = arena.field(), arena.plays()
    population = InstructionPopulation(instructions=("a",), every=None)
    found = arena.runner.perform(lambda collect: play_through([population, SecondAttempt()], collect)(plays, field))
    assert len(found) == 8 and {s.observation.instruction for t in found for s in t.steps} == {"a"}
    assert field.played[-1].steps[0].observation.instruction.startswith("a ")  # type: ignore[union-attr]
