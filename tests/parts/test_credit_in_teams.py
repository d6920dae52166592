"""Credit in teams, what holds for every input.

Keys: (1) `act` counts an agent's acts in its conversation, in any order of rows, and opponents do not disturb it;
(2) one agent in one conversation: `act` is the rank of its turn; (3) `reads` comes from what programs tell of an act.
All estimators for teams, side by side: (4) renaming the roles permutes names and changes no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.parts.estimators import dr_mas
from palaestra.parts.games import mars
from palaestra.parts.rewards import role_mix
from palaestra.systems.adv_evo.public_baseline import public_baseline
from palaestra.systems.counterfactual import counterfactual
from palaestra.systems.descendants import descendants
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.systems.hi_agent.advantage import foresight
from palaestra.systems.hrpo.advantage import hrpo
from palaestra.systems.m_grpo.advantage import m_grpo
from palaestra.systems.m_grpo.hierarchical import hierarchical
from palaestra.systems.rae import RoleAdvantage
from palaestra.systems.shapley import shapley_credit
from tests.parts.small_tables import at
from tests.parts.tables import quick, shuffled, tables

few = settings(max_examples=8, deadline=None, derandomize=True)  # of each estimator


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
    table = StepTable(agent=["x", "opponent", "x", "opponent"], row_weight=[1, 0, 1, 0], **columns)
    assert table.act.tolist() == [0, 0, 1, 1]


def test_reads_come_from_programs() -> None:  # rule 3
    def step(turn: int, agent: str, **info: Any) -> Step:
        return Step(agent=agent, turn=turn, action=Action(text="x"), observation=Observation(text="y"), info=info)

    steps = [step(0, "a"), step(1, "b", reads=[0]), step(2, "c", reads=(0, 1)), step(3, "a")]
    table = StepTable.from_trajectories([Trajectory(task=Task(env="e", seed=0), group="0", steps=steps)])
    assert [table.labels("reads")[code] if code >= 0 else None for code in table["reads"].tolist()] == [
        None, (0,), (0, 1), None
    ]  # fmt: skip


NAMES = {"M": "z", "S": "a"}  # the other way round in every sorting


def judged(table: StepTable) -> StepTable:
    return table.replace(format=(table["format"] > 0.5).float(), expert=table["process"].clamp(0, 1))


TEAMS: dict[str, tuple[Callable[..., Tensor], dict[str, str]]] = {
    "dr_mas": (dr_mas, {}),
    "at_grpo": (lambda table: dr_mas(table, by=("group", "agent", "act")), {}),
    "mars": (mars, {}),
    "m_grpo": (lambda table, main: m_grpo(table, at(), main=main), {"main": "M"}),
    "hrpo": (hrpo, {}),
    "public_baseline": (lambda table: public_baseline(table, by=("agent",)), {}),
    "flow_grpo": (flow_grpo, {"planner": "M"}),
    "foresight": (lambda table, **who: foresight(table, **who, by=("group", "state_key")), {"planner": "M"}),
    "descendants": (descendants, {}),
    "rae": (lambda table: RoleAdvantage()(table, at()), {}),
    "rae-batch": (lambda table: RoleAdvantage(step="batch")(table, at()), {}),
    "role_mix": (role_mix, {}),
    "hierarchical": (lambda table, main: hierarchical(judged(table), main=main), {"main": "M"}),
    "shapley": (shapley_credit, {}),
    "counterfactual": (counterfactual, {}),
}


@pytest.mark.parametrize("name", TEAMS)
@few
@given(table=tables())
def test_renaming_roles_permutes(name: str, table: StepTable) -> None:  # rule 4
    part, roles = TEAMS[name]
    labels = table.labels("agent")
    renamed = table.replace(agent=[NAMES[labels[code]] for code in table["agent"].tolist()])
    found = part(table, **roles)
    other = part(renamed, **{option: NAMES[role] for option, role in roles.items()})
    assert torch.equal(found, other)


def test_renaming_can_fail() -> None:  # rule 4
    """A part that looks at a role's name is found out."""
    table = StepTable(group=["g"] * 2, trajectory=["a"] * 2, agent=["M", "S"], turn=[0, 1], reward=[1, 2])
    renamed = table.replace(agent=["z", "a"])
    assert not torch.equal(role_mix(table, weight={"M": 1, "*": 0}), role_mix(renamed, weight={"M": 1, "*": 0}))
