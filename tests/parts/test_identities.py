"""Identities between methods, on random tables.

(1) RLOO = G/(G−1) · Dr. GRPO, and GRPO = Dr. GRPO / (deviation + 1e-6). (2) Keys that collapse: Dr. MAS with one
agent and one row a trajectory is GRPO; GiGPO without step part is GRPO, bit for bit. (3) Keys that explode: GiGPO
with unique states is its episode part. (4) Temporal differences: lam 1 is reward to go − V, lam 0 is δ, and the sum
telescopes. (5) With one token a row the token is the turn. (6) Scale: with std unchanged under R → cR + d, without
scale multiplied by c.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import reward_to_go, segment_mean, segment_std, total_return
from palaestra.data import StepTable
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import dr_grpo, dr_mas, grpo, reinforce, reinforce_plus_plus_baseline, rloo
from palaestra.parts.filters import whiten
from palaestra.systems.gigpo import gigpo
from tests.parts.tables import close, quick, tables


def group_sizes(table: StepTable) -> torch.Tensor:
    """Number of trajectories in each row's group."""
    names = list(zip(table.labels("group"), [0] * table.rows, strict=False))
    pairs = {(g, t) for g, t in zip(table["group"].tolist(), table["trajectory"].tolist(), strict=True)}
    size = [sum(g == code for g, _ in pairs) for code in range(len(names))]
    return torch.tensor(size, dtype=torch.float64)[table["group"]]


@quick
@given(tables())
def test_leave_one_out_is_a_factor(table: StepTable) -> None:  # rule 1
    size = group_sizes(table)
    factor = torch.where(size > 1, size / (size - 1).clamp_min(1), 0.0)
    assert close(rloo(table), factor * dr_grpo(table).double())


@quick
@given(tables(one_row=True))
def test_scale_is_a_quotient(table: StepTable) -> None:  # rule 1
    deviation = segment_std(total_return(table), by=table.key("group"))[table["group"]]
    assert close(grpo(table), dr_grpo(table).double() / (deviation + 1e-6))


@quick
@given(tables(agents=("solo",), one_row=True))
def test_team_of_one(table: StepTable) -> None:  # rule 2
    assert torch.equal(dr_mas(table), grpo(table))


@quick
@given(tables(), st.sampled_from(["none", "std"]))
def test_without_step_part(table: StepTable, scale: Any) -> None:  # rule 2
    assert torch.equal(gigpo(table, step_weight=0.0, scale=scale), grpo(table, scale=scale))
    assert torch.equal(grpo(table, scale="none"), dr_grpo(table))


@quick
@given(tables(), st.sampled_from(["none", "std"]))
def test_without_shared_states(table: StepTable, scale: Any) -> None:  # rule 3
    unique = table.replace(state_key=range(len(table)))
    assert torch.equal(gigpo(unique, scale=scale), grpo(unique, scale=scale))


@pytest.mark.parametrize("level", ["row", "token"])
@quick
@given(table=tables(agents=("solo",)))
def test_temporal_differences(level: Any, table: StepTable) -> None:  # rule 4
    table = table.replace(bootstrap_value=None, truncated=None, terminated=_ends(table))
    value = table["row_value"] if level == "row" else table["value_old"]
    to_go = reward_to_go(table, gamma=0.5, level=level)
    full = ppo(table, level=level, gamma=0.5, lam=1.0, whiten=False)
    assert close(full.advantage, to_go - value)
    assert close(full.target, to_go)
    short = ppo(table, level=level, gamma=0.5, lam=0.0, whiten=False)
    again = reward_to_go(table, gamma=0.5, level=level, reward=short.advantage)
    assert close(again, full.advantage), "δ, discounted and summed, is the lam = 1 advantage"


@quick
@given(tables(one_token=True))
def test_a_token_is_a_turn(table: StepTable) -> None:  # rule 5
    for switched in (True, False):
        rows = ppo(table, level="row", gamma=0.5, lam=0.75, whiten=switched)
        tokens = ppo(table, level="token", gamma=0.5, lam=0.75, gamma_in=0.25, whiten=switched)
        assert torch.equal(rows.advantage, tokens.advantage)
        assert torch.equal(rows.target.nan_to_num(), tokens.target.nan_to_num())
    assert torch.equal(reinforce(table, level="row"), reinforce(table, level="token"))


@quick
@given(tables(one_row=True))
def test_baseline_variant_is_a_filter(table: StepTable) -> None:  # rule 2
    assert close(reinforce_plus_plus_baseline(table), whiten(table, dr_grpo(table)))


@quick
@given(tables(one_row=True), st.sampled_from([0.5, 2.0, 8.0]), st.sampled_from([-1.0, 0.0, 4.0]))
def test_scale_and_shift(table: StepTable, c: float, d: float) -> None:  # rule 6
    other = table.replace(reward=c * table["reward"] + d)
    apart = segment_std(total_return(table), by=table.key("group"))[table["group"]] > 0.1  # beyond the 1e-6 added
    assert close(grpo(other)[apart], grpo(table)[apart])
    for linear in (dr_grpo, rloo):
        assert close(linear(other), c * linear(table))


@quick
@given(tables())
def test_group_sums(table: StepTable) -> None:  # invariants
    first = torch.ones(len(table), dtype=torch.bool)
    first[1:] = table["trajectory"][1:] != table["trajectory"][:-1]
    for estimator in (grpo, rloo, dr_grpo):
        each = estimator(table).double() * first
        assert close(torch.zeros(3, dtype=torch.float64).index_add_(0, table["group"], each), [0.0, 0.0, 0.0])
    own = table.key("group", "agent")
    assert close(segment_mean(dr_mas(table), by=own), torch.zeros(own.size))
    states = table.key("group", "state_key")
    step = gigpo(table).double() - gigpo(table, step_weight=0.0).double()
    assert close(segment_mean(step, by=states), torch.zeros(states.size))


def _ends(table: StepTable) -> list[bool]:
    trajectory = table["trajectory"].tolist()
    return [k + 1 == len(trajectory) or trajectory[k + 1] != trajectory[k] for k in range(len(trajectory))]
