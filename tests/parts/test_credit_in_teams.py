"""Credit in teams, what holds for every input. Numbers by hand are in tests/golden/team_credit.yaml and rae.yaml.

Keys: (1) `act` counts an agent's acts in its conversation, in any order of rows, and guests do not disturb it;
(2) one agent in one conversation: `act` is the rank of its turn.
Descendants: (3) in a chain D is the reward to go, bit for bit; (4) trees and networks of readers agree where both
describe the same; (5) it is what walking over all descendants gives; (6) what nobody read has its own reward only;
(7) parallel acts that do not read each other may be exchanged; (8) what is refused.
RAE: (9) batch after batch equals one loop over episodes; (10) the order of rows does not matter, nor do rows of weight
0; (11) of a game without sum, seats' advantages sum to 0; (12) its b does not know the episode: the mean gradient on a
bandit is the true one; (13) a stopped run goes on with the same baselines; (14) what it refuses.
All estimators for teams: (15) renaming the roles permutes names and changes no number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import reward_to_go
from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import dr_mas
from palaestra.parts.games import mars
from palaestra.parts.rewards import role_mix
from palaestra.registry import part
from palaestra.systems.adv_evo.public_baseline import public_baseline
from palaestra.systems.counterfactual import counterfactual
from palaestra.systems.descendants import descendants
from palaestra.systems.descendants.messages import Readings, descendant_return, readings_of
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.systems.hi_agent.advantage import foresight
from palaestra.systems.hrpo.advantage import hrpo
from palaestra.systems.m_grpo.advantage import m_grpo
from palaestra.systems.m_grpo.hierarchical import hierarchical
from palaestra.systems.rae import RoleAdvantage
from palaestra.systems.shapley import shapley_credit
from palaestra.training.experience import Seen
from tests.parts.episodes import NETWORK, assert_resumes
from tests.parts.tables import close, quick, shuffled, tables

few = settings(max_examples=8, deadline=None, derandomize=True)  # of each estimator


def look(step: int = 0) -> Seen:
    return Seen({}, step, seed=step, temperature=1.0, token_budget=64)


# ---- the column act ---------------------------------------------------------------------------------------
@few
@given(tables(), st.integers(0, 10**6))
def test_act_counts(table: StepTable, seed: int) -> None:  # rule 1
    order = shuffled(table, seed)
    found = table.take(order).act
    seen: dict[tuple[int, ...], int] = {}
    expected = []
    conversations = zip(*(table[name].tolist() for name in ("trajectory", "agent", "invocation")), strict=True)
    for conversation in conversations:  # rows of these tables stand in time
        expected.append(seen.get(conversation, 0))
        seen[conversation] = expected[-1] + 1
    assert found.tolist() == torch.tensor(expected)[order].tolist()
    assert torch.equal(dr_mas(table, by=("act",)), dr_mas(table.replace(act=expected), by=("act",)))


@quick
@given(tables(agents=("M",)))
def test_act_of_one_agent(table: StepTable) -> None:  # rule 2
    assert torch.equal(table.replace(invocation=None).act, table["turn"])


def test_guests_do_not_disturb_acts() -> None:  # rule 1
    columns: dict[str, Any] = {"group": ["g"] * 4, "trajectory": ["a"] * 4, "reward": [0.0] * 4, "turn": range(4)}
    table = StepTable(agent=["x", "guest", "x", "guest"], weight=[1, 0, 1, 0], **columns)
    assert table.act.tolist() == [0, 0, 1, 1]


# ---- descendants ------------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(0, 10**6))
def test_chain_is_reward_to_go(table: StepTable, gamma: float, seed: int) -> None:  # rule 3
    reads = [None if turn == 0 else (turn - 1,) for turn in table["turn"].tolist()]
    chain = table.replace(reads=reads, parent=None).take(shuffled(table, seed))
    readings = readings_of(chain, own=False, replies=False, where="test")
    assert torch.equal(descendant_return(chain, readings, gamma=gamma), reward_to_go(chain, gamma=gamma))


def walked(table: StepTable, readings: Readings, gamma: float) -> Tensor:
    """The definition: breadth first over who read whom."""
    readers: dict[int, list[int]] = {}
    for reader, source in zip(readings.reader.tolist(), readings.source.tolist(), strict=True):
        readers.setdefault(source, []).append(reader)
    out = []
    for row in range(len(table)):
        total, seen, edge, hop = 0.0, {row}, [row], 0
        while edge:
            total += gamma**hop * sum(float(table["reward"][one]) for one in edge)
            fresh = dict.fromkeys(one for other in edge for one in readers.get(other, []) if one not in seen)
            seen |= set(fresh)
            edge, hop = list(fresh), hop + 1
        out.append(total)
    return torch.tensor(out)


@quick
@given(tables(), st.sampled_from([0.25, 0.5, 1.0]), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_it_is_the_sum_over_descendants(
    table: StepTable, gamma: float, own: bool, replies: bool, seed: int
) -> None:  # rules 4, 5
    dice = np.random.default_rng(seed)
    turns = table["turn"].tolist()
    said = [None if dice.random() < 0.3 else [t for t in range(turn) if dice.random() < 0.4] for turn in turns]
    for each in (table, table.replace(reads=said)):
        readings = readings_of(each, own=own, replies=replies, where="test")
        found = descendant_return(each, readings, gamma=gamma)
        assert close(found, walked(each, readings, gamma))


@quick
@given(tables())
def test_what_nobody_read(table: StepTable) -> None:  # rule 6
    silent = table.replace(reads=[()] * len(table))
    readings = readings_of(silent, own=False, replies=False, where="test")
    assert not len(readings.reader)
    assert torch.equal(descendant_return(silent, readings, gamma=1.0), table["reward"])


def test_parallel_acts_may_be_exchanged() -> None:  # rule 7
    reads, reward = [(), (0,), (0,), (1, 2)], [0.0, 0.25, 0.5, 1.0]
    columns: dict[str, Any] = {"group": ["g"] * 8, "trajectory": ["a"] * 4 + ["b"] * 4, "agent": list("pqrs") * 2}
    table = StepTable(turn=[0, 1, 2, 3] * 2, reward=reward + [0.0] * 4, reads=reads * 2, **columns)
    other = StepTable(turn=[0, 2, 1, 3] * 2, reward=reward + [0.0] * 4, reads=reads * 2, **columns)
    assert torch.equal(descendants(table, own=False), descendants(other, own=False))
    together = readings_of(table, own=False, replies=False, where="test")
    assert descendant_return(table, together, gamma=1.0)[:4].tolist() == [1.75, 1.25, 1.5, 1.0]


def test_what_descendants_refuses() -> None:  # rule 8
    columns: dict[str, Any] = {"group": ["g"] * 4, "trajectory": list("aabb"), "agent": ["x"] * 4, "reward": [0.0] * 4}
    for reads in ([None, (1,), None, None], [(3,), None, None, None], [None, (-1,), None, None]):
        with pytest.raises(InvalidData, match="no earlier act of its trajectory"):
            descendants(StepTable(turn=[0, 1, 0, 1], reads=reads, **columns))
    with pytest.raises(InvalidData, match="not the turn of an act"):
        descendants(StepTable(turn=[0, 1, 0, 1], parent=[None, "x", None, None], **columns))
    columns |= {"group": ["g"] * 3, "trajectory": ["a"] * 3, "agent": list("xyz"), "reward": [0.0] * 3}
    with pytest.raises(InvalidData, match="which two acts share"):
        descendants(StepTable(turn=[0, 0, 1], reads=[None, None, (0,)], **columns))


def test_reads_come_from_programs() -> None:  # rule 6
    def step(turn: int, agent: str, **info: Any) -> Step:
        return Step(agent=agent, turn=turn, action=Action(text="x"), observation=Observation(text="y"), info=info)

    steps = [step(0, "a"), step(1, "b", reads=[0]), step(2, "c", reads=(0, 1)), step(3, "a")]
    table = StepTable.from_trajectories([Trajectory(task=Task(env="e", seed=0), group="0", steps=steps)])
    assert [table.labels("reads")[code] if code >= 0 else None for code in table["reads"].tolist()] == [
        None, (0,), (0, 1), None
    ]  # fmt: skip


# ---- RAE --------------------------------------------------------------------------------------------------
def games(rewards: list[float], names: list[str] | None = None) -> StepTable:
    """Seat 0 wins what seat 1 loses."""
    size = len(rewards)
    names = names or [f"{k}/0" for k in range(size)]
    return StepTable(
        group=[name.split("/")[0] for name in names for _ in range(2)],
        trajectory=[name for name in names for _ in range(2)],
        agent=["0", "1"] * size,
        turn=[0, 1] * size,
        reward=[sign * reward for reward in rewards for sign in (1, -1)],
    )


@quick
@given(st.lists(st.lists(st.sampled_from([-1.0, 0.5, 2.0]), min_size=1, max_size=12), min_size=1, max_size=4))
def test_rae_is_a_loop_over_episodes(batches: list[list[float]]) -> None:  # rules 9, 11
    first, later = RoleAdvantage(alpha=0.9), RoleAdvantage(alpha=0.9, order="compare_first")
    b = 0.0
    for rewards in batches:
        table, expected, before = games(rewards), [], []
        for reward in rewards:
            before.append(reward - b)
            b = 0.9 * b + 0.1 * reward
            expected.append(reward - b)
        found, other = first(table, look()), later(table, look())
        assert close(found[::2], expected) and close(other[::2], before)
        assert torch.equal(found[::2], -found[1::2])
        assert close(found, 0.9 * other.double())
    assert first.baselines[("0",)] == -first.baselines[("1",)] == pytest.approx(b)
    assert first.learn(table, look())["advantage/baseline/0"] == pytest.approx(b)


@few
@given(tables(), tables(), st.integers(0, 10**6), st.sampled_from(["episode", "batch"]))
def test_rae_sees_no_order_of_rows(one: StepTable, two: StepTable, seed: int, step: Any) -> None:  # rule 10
    whole, mixed = RoleAdvantage(step=step), RoleAdvantage(step=step)
    for table in (one, two):
        order = shuffled(table, seed)
        padded = table.take(torch.cat([order, order[:2]]))
        weight = torch.ones(len(padded))
        weight[-2:] = 0
        found = mixed(padded.replace(weight=weight, reward=torch.where(weight > 0, padded["reward"], 1e3)), look())
        assert close(found[: len(table)], whole(table, look())[order])
        assert not found[len(table) :].any()
    assert whole.baselines == pytest.approx(mixed.baselines)


def test_rae_takes_neighbors_of_different_tasks() -> None:  # rule 10
    mixed = RoleAdvantage(alpha=0.5)
    found = mixed(games([1, 2, 4], ["0/9", "0/10", "1/9"]), look())
    assert found[::2].tolist() == [0.5, 2 - (0.5 * (0.25 + 2) + 1), 4 - (0.25 + 2)]


@pytest.mark.parametrize("order", ["update_first", "compare_first"])
def test_rae_is_unbiased(order: Any) -> None:  # rule 12
    """All four pairs of acts of two episodes of a bandit with two arms, P(1) = 0.3, which pays 1 and −0.5."""
    p, pay = 0.3, {1: 1.0, 0: -0.5}
    score = {1: 1 - p, 0: -p}  # of the logit of arm 1
    gradient = 0.0
    for acts in itertools.product((0, 1), repeat=2):
        rae = RoleAdvantage(alpha=0.8, order=order)
        rae.baselines = {("x",): 3.0}
        table = StepTable(
            group=["g"] * 2, trajectory=["g/0", "g/1"], agent=["x"] * 2, turn=[0, 0], reward=[pay[a] for a in acts]
        )
        found = rae(table, look()).tolist()
        chance = np.prod([p if act else 1 - p for act in acts])
        gradient += float(chance) * sum(a * score[act] for a, act in zip(found, acts, strict=True)) / 2
    assert gradient == pytest.approx((0.8 if order == "update_first" else 1.0) * p * (1 - p) * 1.5, abs=1e-6)


def test_rae_resumes(tmp_path: Path) -> None:  # rule 13
    whole, parts = RoleAdvantage(), RoleAdvantage()
    first, second = games([1, 1, -1]), games([2, -1])
    whole(first, look())
    parts(first, look())
    path = tmp_path / "state.pt"
    torch.save(parts.state_dict(), path)
    again = RoleAdvantage()
    again.load_state_dict(torch.load(path))
    assert torch.equal(again(second, look()), whole(second, look()))
    assert again.state_dict() == whole.state_dict()


@pytest.mark.slow
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 13
    assert_resumes([NETWORK, {"advantage": [{"rae": {"alpha": 0.9}}]}], tmp_path, monkeypatch, "advantage.0.state.pt")


def test_what_rae_refuses() -> None:  # rule 14
    with pytest.raises(InvalidData, match="rows are of no game"):
        RoleAdvantage()(games([1, 2]).replace(game=["a", "a", None, None]), look())
    for alpha in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="alpha"):
            part("advantage", "rae").check({"alpha": alpha}, where="advantage: rae")


# ---- renaming ---------------------------------------------------------------------------------------------
NAMES = {"M": "z", "S": "a"}  # the other way round in every sorting


def judged(table: StepTable) -> StepTable:
    return table.replace(format=(table["format"] > 0.5).float(), expert=table["process"].clamp(0, 1))


TEAMS: dict[str, tuple[Callable[..., Tensor], dict[str, str]]] = {
    "dr_mas": (dr_mas, {}),
    "at_grpo": (lambda table: dr_mas(table, by=("group", "agent", "act")), {}),
    "mars": (mars, {}),
    "m_grpo": (m_grpo, {"main": "M"}),
    "hrpo": (hrpo, {}),
    "public_baseline": (lambda table: public_baseline(table, by=("agent",)), {}),
    "flow_grpo": (flow_grpo, {"planner": "M"}),
    "foresight": (lambda table, **who: foresight(table, **who, by=("group", "state_key")), {"planner": "M"}),
    "descendants": (descendants, {}),
    "rae": (lambda table: RoleAdvantage()(table, look()), {}),
    "rae-batch": (lambda table: RoleAdvantage(step="batch")(table, look()), {}),
    "role_mix": (role_mix, {}),
    "hierarchical": (lambda table, main: hierarchical(judged(table), main=main), {"main": "M"}),
    "shapley": (shapley_credit, {}),
    "counterfactual": (counterfactual, {}),
}


@pytest.mark.parametrize("name", TEAMS)
@few
@given(table=tables())
def test_renaming_roles_permutes(name: str, table: StepTable) -> None:  # rule 15
    part, roles = TEAMS[name]
    labels = table.labels("agent")
    renamed = table.replace(agent=[NAMES[labels[code]] for code in table["agent"].tolist()])
    found = part(table, **roles)
    other = part(renamed, **{option: NAMES[role] for option, role in roles.items()})
    assert torch.equal(found, other)


def test_renaming_can_fail() -> None:  # rule 15
    """A part that looks at a role's name is found out."""
    table = StepTable(group=["g"] * 2, trajectory=["a"] * 2, agent=["M", "S"], turn=[0, 1], reward=[1, 2])
    renamed = table.replace(agent=["z", "a"])
    assert not torch.equal(role_mix(table, weight={"M": 1, "*": 0}), role_mix(renamed, weight={"M": 1, "*": 0}))
