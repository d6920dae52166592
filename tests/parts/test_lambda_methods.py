"""Estimators that are generalized advantage estimation with another clock, unit, reward or end, side by side.

(1) One token a row: POAD = NTPO = VL-DAC = turn-level GAE = PPR = token PPO = turn PPO, without whitening and with it;
VL-DAC's whitening adds its 1e-8 to the deviation, not to the variance.
(2) gamma 1: POAD = NTPO = PPR = PPO-max without KL = token PPO at any length.
(3) VL-DAC and turn-level GAE: tokens of a step share one number, and token values inside a step change nothing.
(4) Turn-level GAE whitens over tokens, VL-DAC over steps. (5) PPO-max: the penalty is paid token by token; nothing is
paid where the policy is its reference; advantages stay within the clip. (6) Refusals. (7) Agents without a critic are
left out of the whitening. (8) A million rows take less than a second. (9) The critic's warm-up keeps targets, and only
its first iterations.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import Credit
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.critics import CriticWarmup, ppo, ppo_max
from palaestra.systems.poad.advantage import poad
from palaestra.systems.poad.ntpo import ntpo
from palaestra.systems.ppr.advantage import ppr
from palaestra.systems.turn_gae.advantage import turn_gae
from palaestra.systems.vl_dac.advantage import vl_dac
from palaestra.training.stages import assign_credit
from tests.messages import told
from tests.parts.small_tables import at, two_steps
from tests.parts.tables import close, quick, tables

TOKEN_LEVEL = (poad, ntpo, ppr, ppo_max)
ROW_LEVEL = (vl_dac, turn_gae)
EVERY = (*TOKEN_LEVEL, *ROW_LEVEL)


def without_kl(estimator: Any) -> dict[str, float]:
    return {"kl_coefficient": 0.0} if estimator is ppo_max else {}


def equal(one: Credit, other: Credit) -> bool:
    return all(torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0)) for a, b in zip(one[:2], other[:2], strict=True))


# ---- identities -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("whiten", [False, True])
@quick
@given(table=tables(one_token=True))
def test_one_token_a_row(whiten: bool, table: StepTable) -> None:  # rule 1
    switches: dict[str, Any] = {"gamma": 0.5, "lam": 0.75, "whiten": whiten}
    rows, tokens = ppo(table, level="row", **switches), ppo(table, level="token", **switches)
    assert equal(rows, tokens)
    for estimator in EVERY:
        found = estimator(table, **switches, **without_kl(estimator))
        if whiten and estimator is vl_dac:
            judged = rows.target.isfinite()
            plain = ppo(table, level="row", **{**switches, "whiten": False}).advantage[judged].double()
            ratio = torch.sqrt(plain.var() + 1e-8) / (plain.std() + 1e-8)
            assert close(found.advantage, rows.advantage * ratio)
            found = Credit(rows.advantage, found.target)
        assert equal(found, rows), estimator.part.name


@quick
@given(table=tables())
def test_without_discount_the_clock_does_not_matter(table: StepTable) -> None:  # rule 2
    tokens = ppo(table, level="token", gamma=1.0, lam=0.75)
    for estimator in TOKEN_LEVEL:
        found = estimator(table, gamma=1.0, lam=0.75, **without_kl(estimator))
        assert equal(found, tokens), estimator.part.name
    assert not equal(poad(two_steps(), gamma=0.5), ntpo(two_steps(), gamma=0.5))


# ---- steps as units ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", ROW_LEVEL, ids=lambda e: e.part.name)
@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_inside_a_step(estimator: Any, table: StepTable, seed: int) -> None:  # rule 3
    found = estimator(table)
    assert len(found.advantage) == len(table)
    tokens = assign_credit([estimator], table)["advantage"]
    assert all(float(own.max() - own.min()) == 0.0 for own in tokens.split(table["token_count"].tolist()))
    dice = torch.Generator().manual_seed(seed)
    moved = [own[torch.randperm(len(own), generator=dice)] for own in _of_rows(table, "value_old")]
    assert equal(estimator(table.replace(value_old=torch.cat(moved))), found)


def _of_rows(table: StepTable, name: str) -> list[torch.Tensor]:
    return list(table[name].split(table["token_count"].tolist()))


@quick
@given(table=tables())
def test_what_is_whitened(table: StepTable) -> None:  # rule 4
    steps, turns = vl_dac(table).advantage, turn_gae(table).advantage
    if float(vl_dac(table, whiten=False).advantage.std()) > 0.1:
        assert close(steps.mean(), 0.0) and close(steps.var(), 1.0, tolerance=1e-3)
    tokens = table.per_token(turns)
    if float(table.per_token(turn_gae(table, whiten=False).advantage).std()) > 0.1:
        assert close(tokens.mean(), 0.0) and close(tokens.var(), 1.0, tolerance=1e-3)


# ---- PPO-max ----------------------------------------------------------------------------------------------
@quick
@given(table=tables())
def test_a_policy_that_is_its_reference_pays_nothing(table: StepTable) -> None:  # rule 5
    table = table.replace(logprob_reference=table["logprob_old"])
    free = ppo_max(table, kl_coefficient=0.0)
    assert equal(ppo_max(table, kl_coefficient=0.5), free)
    bounded = ppo_max(table, kl_coefficient=0.0, clip=0.5)
    assert torch.equal(bounded.advantage, free.advantage.clamp(-0.5, 0.5))


def test_the_penalty_is_a_token_reward() -> None:  # rule 5
    logprobs = {"logprob_old": [-1.0] * 4, "logprob_reference": [-1.5, -1.0, -1.0, -0.5]}
    paid = ppo_max(two_steps(**logprobs), kl_coefficient=0.2, lam=1.0, whiten=False).target
    assert close(paid, [1.0, 1.1, 1.1, 1.1])  # −.1 on the first token, 0.1 on the last
    sampled = {"logprob_behavior": [-1.0] * 4, "logprob_reference": logprobs["logprob_reference"]}
    assert close(ppo_max(two_steps(**sampled), kl_coefficient=0.2, lam=1.0, whiten=False).target, paid)


# ---- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", EVERY, ids=lambda e: e.part.name)
def test_no_critic(estimator: Any) -> None:  # rule 6
    silent = two_steps(row_value=None, value_old=None, logprob_behavior=[-1.0] * 4, logprob_reference=[-1.0] * 4)
    with pytest.raises(MissingColumn, match="no critic has given values"):
        estimator(silent)
    endless = two_steps(terminated=[False, False], logprob_behavior=[-1.0] * 4, logprob_reference=[-1.0] * 4)
    with pytest.raises(InvalidData, match="neither terminated nor truncated"):
        estimator(endless)
    for key in ("gamma", "lam"):
        with pytest.raises(RecipeError, match=f"cannot take `{key}: 1.5`"):
            estimator(two_steps(), **{key: 1.5})


def test_values_of_the_wrong_unit() -> None:  # rule 6
    with told(InvalidData, "2 values for"):
        two_steps(value_old=[0.4, 0.6])
    with told(InvalidData, "4 values for"):
        two_steps(row_value=[0.5, 0.6, 0.7, 0.8])
    with told(InvalidData, "no response token"):
        two_steps(token_count=[4, 0])
    with pytest.raises(InvalidData, match="not finite inside one"):  # padding inside an action has no value
        poad(two_steps(value_old=[0.5, float("nan"), 0.7, 0.8]))


def test_no_reference() -> None:  # rule 6
    with pytest.raises(MissingColumn, match="logprob_reference") as caught:
        ppo_max(two_steps())
    assert "reference: start" in str(caught.value)
    half = two_steps(logprob_behavior=[-1.0] * 4, logprob_reference=[-1.0, -1.0, -1.0, float("nan")])
    with told(InvalidData, "1 tokens have") as found:
        ppo_max(half)
    assert "same vocabulary" in str(found.value)
    with told(InvalidData, "3 values for"):
        two_steps(logprob_reference=[-1.0] * 3)


# ---- the rest ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("estimator", EVERY, ids=lambda e: e.part.name)
def test_agents_without_a_critic(estimator: Any) -> None:  # rule 7
    nan = float("nan")
    mixed = StepTable(
        group=["g"] * 4, trajectory=[1, 1, 2, 2], agent=["x", "y"] * 2, turn=[0, 1, 0, 1], reward=[1.0, 5.0, 0.0, 5.0],
        row_value=[0.5, nan, 0.5, nan], value_old=[0.5, nan, 0.5, nan], terminated=[True] * 4,
        logprob_behavior=[-1.0, nan, -1.0, nan], logprob_reference=[-1.0, nan, -1.0, nan],
    )  # fmt: skip
    found = estimator(mixed)
    assert close(found.advantage, [0.7071, 0.0, -0.7071, 0.0])
    assert found.target.isnan().tolist() == [False, True, False, True]


@pytest.mark.parametrize("estimator", [poad, turn_gae, ppo_max], ids=lambda e: e.part.name)
def test_a_million_rows(estimator: Any) -> None:  # rule 8
    rows = 10**6
    row = torch.arange(rows)
    table = StepTable(
        group=row // 80, trajectory=row // 10, agent=torch.zeros(rows, dtype=torch.int64), turn=row % 10,
        reward=torch.ones(rows), row_value=torch.zeros(rows), value_old=torch.zeros(rows), terminated=row % 10 == 9,
        logprob_behavior=torch.full((rows,), -1.0), logprob_reference=torch.full((rows,), -2.0),
    )  # fmt: skip

    def seconds() -> float:
        started = time.process_time()
        estimator(table)
        return time.process_time() - started

    assert any(seconds() < 1.0 for _ in range(3))


def test_warm_up_of_the_critic() -> None:  # rule 9
    filtering = CriticWarmup(iterations=2)
    advantage, table = torch.tensor([0.7, -0.7]), two_steps()
    assert not filtering.ready
    assert filtering(table, advantage, at(1)).tolist() == [0.0, 0.0] and not filtering.ready
    assert torch.equal(filtering(table, advantage, at(2)), advantage) and filtering.ready
    assert filtering.state_dict() == {}, "the number of the iteration says it"
    credit = assign_credit([vl_dac, lambda t, a: filtering(t, a, at(0))], table)
    assert not credit["advantage"].any() and credit["value_target"].any()
