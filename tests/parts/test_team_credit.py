"""A team's reward, divided. Numbers by hand are in tests/golden/team_credit.yaml and in the systems' golden.yaml.

Mixed rewards: (1) a role's rewards sum to w · own + (1 − w) · team; (2) w = 1 leaves every reward bit for bit;
(3) w = 0 pays all roles the same; (4) the published example; (5) weights by role; (6) what is refused.
All that divide it, side by side: (7) padding gets nothing and changes nothing; the order of rows does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.rewards import role_mix
from palaestra.systems.counterfactual import counterfactual
from palaestra.systems.shapley import shapley_credit
from tests.messages import told
from tests.parts.small_tables import team
from tests.parts.tables import close, quick, shuffled, tables

OWN = ("trajectory", "agent")
few = settings(max_examples=10, deadline=None, derandomize=True)


# ---- mixed rewards ----------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_the_mix_of_each_role(table: StepTable, weight: float) -> None:  # rules 1, 3
    own, team = total_return(table, by=OWN).double(), total_return(table).double()
    mixed = total_return(table.replace(reward=role_mix(table, weight=weight)), by=OWN)
    assert torch.equal(mixed.double(), weight * own + (1 - weight) * team)
    judged = total_return(table.replace(reward=role_mix(table, weight=weight, team="outcome")), by=OWN)
    assert torch.equal(judged.double(), weight * own + (1 - weight) * table["outcome"])
    mean = total_return(table.replace(reward=role_mix(table, weight=1.0, pool="mean")), by=OWN)
    assert close(mean, own / torch.bincount(table.key(*OWN).codes)[table.key(*OWN).codes])


@quick
@given(tables(), st.integers(0, 10**6))
def test_all_of_their_own(table: StepTable, seed: int) -> None:  # rule 2
    noise = torch.randn(len(table), generator=torch.Generator().manual_seed(seed))
    table = table.replace(reward=noise)
    assert torch.equal(role_mix(table, weight=1.0), noise)
    assert torch.equal(role_mix(table, weight={"M": 1.0, "*": 1.0}, team="outcome"), noise)


def test_the_published_example() -> None:  # rule 4
    assert close(role_mix(team(), team="outcome"), [0.9, 0.8, 0, 0])


def test_weights_by_role() -> None:  # rule 5
    assert close(role_mix(team(), weight={"plan": 1.0, "solve": 0.0}), [0.8, 1.4, 0, 0])
    assert close(role_mix(team(), weight={"solve": 0.0, "*": 1.0}), [0.8, 1.4, 0, 0])


def test_what_the_mix_refuses() -> None:  # rule 6
    for weight in (-0.1, 1.5, {"plan": 2.0}):
        with pytest.raises(RecipeError, match="weight"):
            role_mix(team(), weight=weight)  # type: ignore[arg-type]
    with told(RecipeError, "`solve`"):
        role_mix(team(), weight={"plan": 0.5})
    with told(InvalidData, "trajectory b"):
        role_mix(team(outcome=[1, 1, float("nan"), 0]), team="outcome")
    with pytest.raises(MissingColumn):
        role_mix(team(outcome=None), team="outcome")


# ---- all --------------------------------------------------------------------------------------------------
EACH: dict[str, Callable[[StepTable], Tensor]] = {
    "role_mix": role_mix,
    "role_mix-mean": lambda table: role_mix(table, pool="mean", own="process", team="outcome"),
    "shapley": shapley_credit,
    "counterfactual": counterfactual,
    "counterfactual-others": lambda table: counterfactual(table, against="others"),
    "counterfactual-replay": lambda table: counterfactual(
        table.replace(without=total_return(table, by=OWN)), against="replay"
    ),
}


@pytest.mark.parametrize("name", EACH)
@few
@given(table=tables(), seed=st.integers(0, 10**6))
def test_padding_and_order(name: str, table: StepTable, seed: int) -> None:  # rule 7
    part, order = EACH[name], shuffled(table, seed)
    plain = part(table)
    assert close(part(table.take(order)), plain[order])
    padded = table.take(torch.cat([torch.arange(0, len(table), 2), torch.arange(len(table))]))
    extra = len(padded) - len(table)
    weight = torch.ones(len(padded))
    weight[:extra] = 0
    found = part(padded.replace(row_weight=weight, reward=torch.where(weight > 0, padded["reward"], 1e3)))
    assert close(found[extra:], plain) and not found[:extra].any()
