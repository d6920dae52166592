"""The ten identities that hold because all estimators are one pipeline, on random tables of language policies (many
tokens a row) and of network policies (one token a row).

(1) RLOO, GRPO and Dr. GRPO differ by factors. (2) Keys that collapse and parts of weight 0 leave GRPO or RLOO.
(3) Keys that explode leave the episode's part, or nothing. (4) MARS is generalized advantage estimation with the
role's mean as value. (5) One token a row: POAD, NTPO, VL-DAC, turn GAE and both levels of PPO agree; gamma 1: POAD is
NTPO. (6) EGAE on finished trajectories is GAE, and on unfinished ones the last δ is its own reward. (7) GiGPO's step
part averaged over equal acts, and SALT, are the same estimate with two baselines. (8) EMPG without gain and bonus only
centers. (9) ReNorm with scores of ½ is the outcome − ½ at each step. (10) Estimators with a scale do not see an affine
change of the reward, those without are multiplied; rewards to go with gamma < 1 do see a shift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import lambda_return, reward_to_go, segment_count, segment_mean, segment_std, total_return
from palaestra.data import Iteration, Key, StepTable
from palaestra.data.keys import compact
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import dr_grpo, dr_mas, grpo, rloo
from palaestra.parts.games import mars
from palaestra.systems.dcpo.advantage import dcpo
from palaestra.systems.empg import empg
from palaestra.systems.flow_grpo.advantage import flow_grpo
from palaestra.systems.gigpo import gigpo
from palaestra.systems.hrpo.advantage import hrpo
from palaestra.systems.loop import loop
from palaestra.systems.m_grpo.advantage import m_grpo
from palaestra.systems.oprl.advantage import oprl
from palaestra.systems.poad.advantage import poad
from palaestra.systems.poad.ntpo import ntpo
from palaestra.systems.salt import salt
from palaestra.systems.srgpo import srgpo
from palaestra.systems.stratified_grpo import stratified_grpo
from palaestra.systems.t_ppo.egae import egae
from palaestra.systems.turn_gae.advantage import turn_gae
from palaestra.systems.vl_dac.advantage import vl_dac
from tests.parts.tables import close, quick, tables
from tests.registered import Slot, targets

kinds = pytest.mark.parametrize("one_token", [False, True], ids=["language", "network"])


def each_kind(**options: Any) -> Callable[[Any], Any]:
    """Run on tables of many tokens and of one token a row."""

    def decorate(check: Callable[[StepTable], None]) -> Any:
        @kinds
        @quick
        @given(data=st.data())
        def run(one_token: bool, data: st.DataObject) -> None:
            check(data.draw(tables(one_token=one_token, **options)))

        return run

    return decorate


def sizes(table: StepTable) -> Tensor:
    """Trajectories in each row's group."""
    whole = table.key("group", "trajectory")
    group = torch.zeros(whole.size, dtype=torch.int64).index_copy_(0, whole.codes, table["group"])
    return torch.bincount(group).double()[table["group"]]


def spread(table: StepTable) -> Tensor:
    """Deviation of the returns of each row's group, every trajectory once."""
    whole = table.key("group", "trajectory")
    group, value = torch.zeros(whole.size, dtype=torch.int64), torch.zeros(whole.size)
    group[whole.codes], value[whole.codes] = table["group"], total_return(table)
    codes, size = compact(group)
    return segment_std(value, by=Key(codes, size))[table["group"]]


@each_kind()
def test_1_factors(table: StepTable) -> None:
    n = sizes(table)
    assert close(rloo(table), torch.where(n > 1, n / (n - 1).clamp_min(1), 0.0) * dr_grpo(table).double())
    assert close(grpo(table), dr_grpo(table).double() / (spread(table) + 1e-6))
    assert torch.equal(loop(table, threshold=0.0), rloo(table))


@each_kind()
def test_2_collapse(table: StepTable) -> None:
    plain = grpo(table)
    assert torch.equal(gigpo(table, step_weight=0.0, scale="std"), plain)
    assert torch.equal(srgpo(table, Iteration(), step_weight=0.0), plain)
    assert torch.equal(hrpo(table, action_weight=0.0), plain)
    assert torch.equal(oprl(table, alpha=0.0), rloo(table))
    assert torch.equal(oprl(table, alpha=0.0, style="grpo"), plain)
    assert torch.equal(stratified_grpo(table, blend=0.0), plain)
    one = table.replace(stratum=["same"] * len(table))
    for blend in (0.0, 0.5, 1.0):
        assert close(stratified_grpo(one, blend=blend), plain)
    assert torch.equal(flow_grpo(table), plain)
    assert torch.equal(dcpo(table), plain)


@each_kind(agents=("M",))
def test_2_teams_of_one(table: StepTable) -> None:
    assert torch.equal(dr_mas(table, unit="trajectory"), grpo(table))
    alone = table.replace(parent=None, invocation=None)
    assert torch.equal(m_grpo(alone, Iteration()), grpo(alone, ddof=0))


@each_kind()
def test_3_explode(table: StepTable) -> None:
    unique = table.replace(state_key=range(len(table)))
    assert torch.equal(gigpo(unique, scale="std"), grpo(unique))
    alone = table.replace(stratum=[f"of {name}" for name in table["trajectory"].tolist()])
    assert close(stratified_grpo(alone, blend=0.75), 0.25 * grpo(table))
    for base in (grpo, rloo, dr_grpo):
        assert torch.equal(salt(unique, base(unique)), base(unique))


@each_kind()
def test_4_mars_is_gae(table: StepTable) -> None:
    to_go = reward_to_go(table, gamma=1.0, by=("trajectory", "agent"))
    role = table.key("game", "agent")
    mean = segment_mean(to_go, by=role)[role.codes]
    ended = table.replace(
        row_value=mean.float(), terminated=(table["terminated"] | table["truncated"]).tolist(), truncated=None
    )
    expected = lambda_return(ended, gamma=1.0, lam=1.0).advantage
    peers = segment_count(by=role)[role.codes] > 1
    assert close(mars(table)[peers], expected[peers])
    assert not mars(table)[~peers].any()


@quick
@given(tables(one_token=True))
def test_5_one_token(table: StepTable) -> None:
    options: Any = {"gamma": 0.5, "lam": 0.75, "whiten": False}
    expected = ppo(table, level="row", **options)
    for found in (ppo(table, level="token", **options), poad(table, **options), ntpo(table, **options),
                  vl_dac(table, **options), turn_gae(table, **options)):  # fmt: skip
        assert torch.equal(found.advantage, expected.advantage)
        assert torch.equal(found.target.nan_to_num(), expected.target.nan_to_num())


@quick
@given(tables())
def test_5_no_discount(table: StepTable) -> None:
    one, other = poad(table, gamma=1.0, lam=0.75), ntpo(table, gamma=1.0, lam=0.75)
    assert torch.equal(one.advantage, other.advantage)
    assert torch.equal(one.advantage, ppo(table, level="token", gamma=1.0, lam=0.75).advantage)


@each_kind()
def test_6_unfinished(table: StepTable) -> None:
    for level in ("row", "token"):
        finished = egae(table, level=level, gamma=0.5, lam=0.75)
        assert torch.equal(finished.advantage, ppo(table, level=level, gamma=0.5, lam=0.75, whiten=False).advantage)
    open_ended = table.replace(terminated=[False] * len(table), truncated=[False] * len(table))
    order, last = table.timeline("trajectory", "agent")
    rows = order[last]
    found = egae(open_ended, level="row", gamma=1.0, lam=0.75)
    assert close(found.advantage[rows], table["reward"][rows])
    assert bool(found.target.isnan().all())


@each_kind(agents=("solo",))
def test_7_two_baselines(table: StepTable) -> None:
    """With a reward at the end only, gamma 1 and no scale: both average the return over equal acts."""
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table)).index_fill_(0, order[last], 1.0)
    moves = {("hall", "go"): "door", ("hall", "take"): "yard", ("door", "go"): "yard", ("door", "take"): "hall"}
    states, actions = table.labels("state_key"), table.labels("action_key")
    reached = [
        moves.get((states[s], actions[a]), "hall")
        for s, a in zip(table["state_key"].tolist(), table["action_key"].tolist(), strict=True)
    ]
    table = table.replace(reward=table["outcome"] * ends, next_key=reached)
    returns, act = total_return(table), table.key("group", "state_key", "action_key")
    mean_act = segment_mean(returns, by=act)[act.codes]
    state = table.key("group", "state_key")
    step = gigpo(table, gamma=1.0).double() - gigpo(table, gamma=1.0, step_weight=0.0).double()
    peers = segment_count(by=state)[state.codes] > 1
    averaged = segment_mean(step, by=act)[act.codes]
    assert close(averaged[peers], (mean_act - segment_mean(returns, by=state)[state.codes])[peers])
    base = returns.double() - dr_grpo(table).double()  # mean return of the group
    compared = sizes(table) > 1
    assert close(salt(table, dr_grpo(table))[compared], (mean_act - base)[compared])


@each_kind()
def test_8_empg_only_centers(table: StepTable) -> None:
    base = grpo(table)
    assert close(empg(table, base, gain=0.0, bonus=0.0), base.double() - base.double().mean())
    rows = grpo(table, unit="row")
    single = table.key("group").size == 1
    if single:  # statistics over rows have a mean of 0 already
        assert close(empg(table, rows, gain=0.0, bonus=0.0), rows)
    level = table.replace(row_entropy=[0.5] * len(table))
    assert close(empg(level, base, bonus=0.0), base.double() - base.double().mean())


@each_kind(agents=("solo",))
def test_9_half_scores(table: StepTable) -> None:
    order, last = table.timeline("trajectory")
    process = torch.full((len(table),), 0.5).index_fill_(0, order[last], torch.nan)
    ended = torch.zeros(len(table), dtype=torch.bool).index_fill_(0, order[last], True)
    table = table.replace(process=process, terminated=ended, truncated=None)
    assert close(Slot("reward").renorm(table), table["outcome"] - 0.5)


@pytest.mark.parametrize("c", [0.5, 4.0])
@pytest.mark.parametrize("d", [-1.0, 4.0])
@quick
@given(table=tables(one_row=True))
def test_10_scale_and_shift(c: float, d: float, table: StepTable) -> None:
    other = table.replace(reward=c * table["reward"] + d)
    apart = spread(table) > 0.1  # far beyond the 1e-6 added
    for scaled in (grpo, flow_grpo, stratified_grpo, dcpo):
        assert close(scaled(other)[apart], scaled(table)[apart])
    for linear in (dr_grpo, rloo, mars, lambda t: oprl(t, alpha=0.0), lambda t: salt(t, rloo(t))):
        assert close(linear(other), c * linear(table).double())


def test_10_discounts_see_a_shift() -> None:
    table = StepTable(
        group=["g"] * 3,
        trajectory=["a", "a", "b"],
        agent=["x"] * 3,
        turn=[0, 1, 0],
        reward=[0, 1, 0],
        state_key=["s"] * 3,
    )
    shifted = table.replace(reward=table["reward"] + 1)
    assert not close(gigpo(shifted, gamma=0.5), gigpo(table, gamma=0.5))
    assert close(mars(table.replace(reward=2 * table["reward"])), 2 * mars(table))


def test_every_estimator_is_named() -> None:
    """The list above does not forget a setting of the pipeline."""
    known = {
        *(
            "adca_grpo",
            "adv_evo",
            "public_baseline",
            "archer",
            "ppo_adaptive_kl",
            "bnpo",
            "canon",
            "descendants",
            "rae",
            "filtered",
            "foresight",
            "hapo",
            "grpo_process",
            "ppr",
            "ppo_max",
            "reinforce",
        ),
        *("reinforce_plus_plus", "reinforce_plus_plus_baseline"),  # identities of their own
    }
    named = {name for name in globals() if hasattr(globals()[name], "part")}
    parts = {o.part.name for o in targets("advantage") if len(o.part.data) == 1}
    assert parts <= named | known


@each_kind()
def test_pooling_leaves_the_whole_gradient(table: StepTable) -> None:
    """Why SALT changes little for a policy that sees only the state: equal acts have equal gradients, so that giving
    them their mean leaves the sum over a batch as it was. Only clipping, mini-batches and histories can tell."""
    base = grpo(table)
    edges = table.key("group", "state_key", "action_key", "next_key")
    before = torch.zeros(edges.size, dtype=torch.float64).index_add_(0, edges.codes, base.double())
    after = torch.zeros(edges.size, dtype=torch.float64).index_add_(0, edges.codes, salt(table, base).double())
    assert close(after, before)


def test_salt_and_gigpo_are_two_baselines(golden: Any) -> None:  # rule 7
    t1 = golden.t1
    step = gigpo(t1, gamma=1.0) - gigpo(t1, gamma=1.0, step_weight=0.0)
    assert close(salt(t1, step, base="row"), [1/6, 1/3, 0, 1/6, -2/3, -1/2, 0, 1/6, 1/3, 0, 0])  # fmt: skip
    assert close(salt(t1, dr_grpo(t1)), [1/6, .5, .5, 1/6, -.5, -.5, -.5, 1/6, .5, .5, .5])  # fmt: skip
