"""SRGPO, EMPG, LOOP, Stratified GRPO, SALT, ADCA-GRPO and GiGPO over similar texts. (1) What must hold of each for
every table; (2) what collapses to what; (3) what is refused, and what it says.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import reward_to_go, segment_mean, segment_std, segment_sum, standardize, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import dr_grpo, grpo, rloo
from palaestra.systems.adca_grpo.advantage import adca_grpo
from palaestra.systems.empg import empg
from palaestra.systems.gigpo import gigpo
from palaestra.systems.loop import loop
from palaestra.systems.salt import salt
from palaestra.systems.srgpo import srgpo
from palaestra.systems.stratified_grpo import stratified_grpo
from tests.parts.tables import close, quick, tables


def table(**columns: Any) -> StepTable:
    """One group of two trajectories of two rows, with every column that is read here."""
    base: dict[str, Any] = {
        "group": ["g"] * 4,
        "trajectory": ["a", "a", "b", "b"],
        "agent": ["x"] * 4,
        "turn": [0, 1, 0, 1],
        "reward": [0.0, 1.0, 0.0, 0.0],
        "process": [1.0, 0.0, 0.0, 0.0],
        "good": [1, 1, 0, 1],
        "entropy": [0.1, 0.2, 0.3, 0.4],
        "stratum": ["0 calls"] * 4,
        "state_key": ["s", "t", "s", "u"],
        "action_key": ["l", "m", "l", "m"],
        "next_key": ["t", "end", "u", "end"],
        "state_text": ["a hall", "a door", "a hall", "a yard"],
    }
    return StepTable(**{**base, **columns})


# ---- SRGPO ------------------------------------------------------------------------------------------------
@quick
@given(tables(), st.integers(0, 99))
def test_srgpo_blocks(some: StepTable, seed: int) -> None:  # rule 1
    step = srgpo(some, scale="none", block_size=3, seed=seed) - srgpo(some, scale="none", step_weight=0.0)
    assert abs(float(step.double().sum())) < 1e-4, "each row is in one block, and blocks are centered"
    again = srgpo(some, scale="none", block_size=3, seed=seed) - srgpo(some, scale="none", step_weight=0.0)
    assert torch.equal(step, again)
    whole = [
        srgpo(some, block_size=size, seed=s) for size, s in ((None, seed), (None, seed + 1), (len(some) + 5, seed))
    ]
    assert close(whole[0], whole[1], tolerance=1e-6) and close(whole[0], whole[2], tolerance=1e-6)


@quick
@given(tables(), st.sampled_from(["none", "std"]))
def test_srgpo_without_scores(some: StepTable, scale: Any) -> None:  # rule 2
    assert torch.equal(srgpo(some, step_weight=0.0, scale=scale), grpo(some, scale=scale))
    assert torch.equal(srgpo(some.replace(process=torch.ones(len(some)))), grpo(some))


@quick
@given(tables())
def test_srgpo_stays_in_its_scope(some: StepTable) -> None:  # rule 1
    for scope in ("group", "trajectory"):
        step = srgpo(some, scale="none", block_scope=scope) - srgpo(some, scale="none", step_weight=0.0)
        key = some.key(scope)
        assert close(segment_sum(step, by=key), torch.zeros(key.size), tolerance=1e-4)


def test_srgpo_blocks_differ_from_seed_to_seed_and_from_iteration_to_iteration() -> None:  # rule 1
    size = 64
    columns = {"group": ["g"] * size, "agent": ["x"] * size, "turn": range(size), "reward": [0.0] * size}
    columns |= {"process": torch.arange(size).float()}

    def step(seed: int, iteration: int) -> Tensor:
        names = [f"{iteration:06d}-00000/{place % 2}" for place in range(size)]
        return srgpo(StepTable(**columns, trajectory=names), seed=seed, block_size=4)

    assert torch.equal(step(0, 0), step(0, 0))
    assert not torch.equal(step(0, 0), step(1, 0)) and not torch.equal(step(0, 0), step(0, 1))


def test_srgpo_bad_input() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="process"):
        srgpo(table(process=None))
    with pytest.raises(InvalidData, match="row 2") as caught:
        srgpo(table(process=[1.0, 0.0, float("nan"), 1.0]))
    assert "1 of 4 steps have no score" in str(caught.value) and "score every step" in str(caught.value)
    for size in (0, 1):
        with pytest.raises(RecipeError, match="cannot take `block_size: "):
            srgpo(table(), block_size=size)
    with pytest.raises(InvalidData, match="1 rows cannot be compared; 2 are needed"):
        srgpo(table(weight=[1.0, 0.0, 0.0, 0.0]))
    with pytest.raises(RecipeError, match="block_scope"):
        srgpo(table(), block_scope="task")


# ---- EMPG -------------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_empg_factors(some: StepTable) -> None:  # rule 1
    ones = torch.ones(len(some))
    assert abs(float(empg(some, ones, bonus=0.0).double().mean())) < 1e-6, "the mean over rows is taken off"
    flat = some.replace(entropy=torch.full((len(some),), 0.7))
    base = grpo(some)
    assert close(empg(flat, base, bonus=0.0), base.double() - base.double().mean())


@quick
@given(tables())
def test_empg_without_effect(some: StepTable) -> None:  # rule 2
    base = grpo(some)
    assert close(empg(some, base, gain=0.0, bonus=0.0), base.double() - base.double().mean())
    assert close(empg(some, base[some.token_row]), empg(some, base)[some.token_row])


def test_empg_rewards_a_clear_next_step() -> None:  # rule 1
    sure = empg(table(entropy=[0.5, 0.0, 0.5, 1.0]), torch.zeros(4), bonus=0.1)
    assert sure[0] > sure[2] > sure[1] and sure[1] == sure[3], "last rows get none"


def test_empg_carries_no_gradient() -> None:  # rule 3
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    assert not empg(table(entropy=entropy), torch.ones(4)).requires_grad


def test_empg_bad_input() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="entropy"):
        empg(table(entropy=None), torch.ones(4))
    with pytest.raises(InvalidData, match="not finite"):
        table(entropy=[0.1, float("nan"), 0.1, 0.1])
    with pytest.raises(InvalidData, match=r"an entropy is negative: -0\.5") as caught:
        empg(table(entropy=[0.1, -0.5, 0.1, 0.1]), torch.ones(4))
    assert "row 1" in str(caught.value) and "not a log-probability" in str(caught.value)
    with pytest.raises(InvalidData, match="every row has weight 0"):
        empg(table(weight=[0.0] * 4), torch.ones(4))
    for key in ("gain", "clarity", "bonus"):
        with pytest.raises(RecipeError, match=f"cannot take `{key}: "):
            empg(table(), torch.ones(4), **{key: -0.1})


# ---- LOOP -------------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_loop_is_rloo_without_small_ones(some: StepTable) -> None:  # rule 2
    base = rloo(some)
    assert torch.equal(loop(some, threshold=0.0), base)
    kept = loop(some, threshold=0.5)
    assert torch.equal(kept, torch.where(base.abs() < 0.5, 0.0, base))


@quick
@given(tables(one_row=True))
def test_loop_with_scale(some: StepTable) -> None:  # rule 2
    deviation = segment_std(total_return(some), by=some.key("group"), ddof=0)[some["group"]]
    assert close(loop(some, scale="std", threshold=0.0), rloo(some).double() / deviation.clamp_min(1e-7))


def test_loop_counts_trajectories_once() -> None:  # rule 1
    long = StepTable(group=["g"] * 4, trajectory=["a", "a", "a", "b"], agent=["x"] * 4, turn=[0, 1, 2, 0],
                     reward=[0, 0, 1, 0])  # fmt: skip
    assert close(loop(long, scale="std"), [2, 2, 2, -2])


def test_loop_bad_input() -> None:  # rule 3
    with pytest.raises(InvalidData, match="no peer set has two members"):
        loop(table(trajectory=["a"] * 4, turn=range(4)))
    apart = table(token_logprob=[-1.0] * 4, token_proximal=[-1.0, -1.0, -1.0, -5.0])
    with pytest.raises(InvalidData, match="differ by 1 nats a token") as caught:
        loop(apart, largest_gap=0.1)
    assert "at most 0.1 are allowed" in str(caught.value) and "same weights" in str(caught.value)
    assert torch.equal(loop(apart), loop(table()))
    with pytest.raises(RecipeError, match="cannot take `threshold: "):
        loop(table(), threshold=-1.0)


# ---- Stratified GRPO --------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["none", "std"]))
def test_strata_that_collapse(some: StepTable, blend: float, scale: Any) -> None:  # rule 2
    one = some.replace(stratum=["0 calls"] * len(some))
    assert close(stratified_grpo(one, blend=blend, scale=scale), grpo(some, scale=scale))
    assert close(stratified_grpo(some, blend=0.0, scale=scale), grpo(some, scale=scale))
    alone = some.replace(stratum=some["trajectory"])
    assert close(stratified_grpo(alone, blend=blend, scale=scale), (1 - blend) * grpo(some, scale=scale).double())


@quick
@given(tables(one_row=True))
def test_strata_split_the_variance(some: StepTable) -> None:  # rule 1
    key, strata = some.key("group"), some.key("group", "stratum")
    inside = stratified_grpo(some, blend=1.0, scale="none")
    overall = stratified_grpo(some, blend=0.0, scale="none")
    bias = standardize(segment_mean(total_return(some), by=strata)[strata.codes].float(), by=key)
    assert close(overall, inside.double() + bias)
    variance = [segment_std(x, by=key, ddof=0).square() for x in (overall, inside, bias)]
    assert close(variance[0] - variance[1], variance[2])


@quick
@given(tables(one_row=True), st.sampled_from([0.5, 4.0]), st.sampled_from([-2.0, 1.0]))
def test_strata_and_affine_returns(some: StepTable, c: float, d: float) -> None:  # rule 1
    apart = segment_std(total_return(some), by=some.key("group", "stratum"))[some.key("group", "stratum").codes] > 0.1
    other = some.replace(reward=c * some["reward"] + d)
    assert close(stratified_grpo(other, blend=1.0)[apart], stratified_grpo(some, blend=1.0)[apart])


def test_stratified_bad_input() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="stratum"):
        stratified_grpo(table(stratum=None))
    with pytest.raises(InvalidData, match="a trajectory has no stratum") as caught:
        stratified_grpo(table(stratum=["0", "0", None, None]))
    assert "row 2" in str(caught.value) and '{"stratum": "2 calls"}' in str(caught.value)
    with pytest.raises(InvalidData, match="its rows are in different strata") as caught:
        stratified_grpo(table(stratum=["0", "1", "0", "0"]))
    assert "trajectory a" in str(caught.value)
    for blend in (-0.1, 1.1):
        with pytest.raises(RecipeError, match="cannot take `blend: "):
            stratified_grpo(table(), blend=blend)
    for leak in ("reward", "outcome"):
        with pytest.raises(RecipeError, match=f"a stratum cannot be made of `{leak}`"):
            stratified_grpo(table(outcome=[1.0, 1.0, 0.0, 0.0]), strata=("stratum", leak))


# ---- SALT -------------------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from([grpo, rloo, dr_grpo]), st.integers(0, 2))
def test_salt_moves_credit_only(some: StepTable, base: Any, history: int) -> None:  # rule 1
    before = base(some)
    after = salt(some, before, history=history)
    assert abs(float((after.double() - before.double()).sum())) < 1e-4
    assert float(after.abs().max()) <= float(before.abs().max()) + 1e-6


@quick
@given(tables())
def test_salt_without_shared_steps(some: StepTable) -> None:  # rule 2
    unique = some.replace(state_key=range(len(some)))
    assert torch.equal(salt(unique, grpo(some)), grpo(some))


def test_salt_of_equal_trajectories() -> None:  # rule 1
    twins = table(next_key=["t", "end", "t", "end"], state_key=["s", "t", "s", "t"])
    assert salt(twins, grpo(twins)).tolist() == [0.0] * 4


def test_salt_merges_inside_groups_only() -> None:  # rule 1
    apart = table(group=["g", "g", "h", "h"], next_key=["t", "end", "t", "end"], state_key=["s", "t", "s", "t"])
    assert salt(apart, torch.tensor([1.0, 1.0, -1.0, -1.0])).tolist() == [1.0, 1.0, -1.0, -1.0]


def test_salt_with_history() -> None:  # rule 1
    merging = table(state_key=["s", "t", "r", "t"], next_key=["t", "end", "t", "end"])
    ones = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert salt(merging, ones).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert salt(merging, ones, history=1).tolist() == [1.0, 1.0, -1.0, -1.0], "they came to t by other steps"


def test_salt_knows_one_end() -> None:  # rule 1
    ends = {"state_key": ["s", "t", "r", "t"], "next_key": ["t", None, "t", None]}
    ones = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert salt(table(**ends, terminated=[False, True, False, True]), ones).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert salt(table(**ends, terminated=[False, True, False, False]), ones).tolist() == [1.0, 1.0, -1.0, -1.0]


def test_salt_and_gigpo_are_two_baselines(golden: Any) -> None:  # rule 1
    t1 = golden.t1
    step = gigpo(t1, gamma=1.0) - gigpo(t1, gamma=1.0, step_weight=0.0)
    assert close(salt(t1, step, base="row"), [1/6, 1/3, 0, 1/6, -2/3, -1/2, 0, 1/6, 1/3, 0, 0])  # fmt: skip
    assert close(salt(t1, dr_grpo(t1)), [1/6, .5, .5, 1/6, -.5, -.5, -.5, 1/6, .5, .5, .5])  # fmt: skip


@pytest.mark.parametrize("key", ["state_key", "action_key", "next_key"])
def test_salt_without_keys(key: str) -> None:  # rule 3
    with pytest.raises(MissingColumn, match=f"the table has no column `{key}`"):
        salt(table(**{key: None}), torch.ones(4))
    with pytest.raises(MissingColumn, match="no row has a value in it"):
        salt(table(**{key: [None] * 4}), torch.ones(4))


def test_salt_bad_base() -> None:  # rule 3
    to_go = reward_to_go(table(), gamma=0.5)
    with pytest.raises(InvalidData, match="differs inside a trajectory") as caught:
        salt(table(), to_go)
    assert "grpo, rloo or dr_grpo" in str(caught.value)
    with pytest.raises(InvalidData, match="differs inside a trajectory"):
        salt(table(token_count=[2, 1, 1, 1]), torch.tensor([1.0, 2.0, 1.0, 0.0, 0.0]), base="row")


# ---- ADCA-GRPO --------------------------------------------------------------------------------------------
@quick
@given(tables(), st.sampled_from(["decouple", "allocation"]))
def test_adca_without_judge(some: StepTable, scheme: Any) -> None:  # rule 2
    assert close(adca_grpo(some, alpha=0.0, scheme=scheme), grpo(some, ddof=0))


@quick
@given(tables())
def test_adca_with_flags_that_say_nothing(some: StepTable) -> None:  # rule 2
    praise = some.replace(good=torch.ones(len(some)))
    assert close(adca_grpo(praise), grpo(some, ddof=0), tolerance=1e-3)


@quick
@given(tables())
def test_adca_scores_are_standard(some: StepTable) -> None:  # rule 1
    """With no reward at all, the first rows' sums are alpha times the sums of z; their mean over a group is 0."""
    silent = some.replace(reward=torch.zeros(len(some)))
    first = some["turn"] == 0
    size = segment_sum(torch.ones(len(some)), by=some.key("trajectory"))[some["trajectory"]]
    mean = adca_grpo(silent, alpha=1.0)[first] / size[first]
    total = torch.zeros(some.key("group").size, dtype=torch.float64).index_add_(0, some["group"][first], mean)
    assert close(total, torch.zeros(len(total)), tolerance=1e-3)


def test_adca_counts_the_outcome_once() -> None:  # rule 1
    for options in ({}, {"outcome": "all_steps"}):
        advantage = adca_grpo(table(), alpha=0.0, **options)
        assert float(advantage.abs().max()) == pytest.approx(1.0, abs=1e-4)


def test_adca_sign_of_good_steps_in_failures() -> None:  # rule 1
    flags = table(good=[1, 0, 1, 0])
    blame = [adca_grpo(flags, scheme="allocation", alpha=1.0, good_in_failure=w) for w in (0.2, -0.2)]
    praise = [a[2] - a[3] for a in blame]  # what the good step of the failure adds to its trajectory
    assert praise[1] > praise[0]


def test_adca_alone_in_its_group() -> None:  # rule 1
    lone = StepTable(group=["g", "g", "h", "h"], trajectory=["a", "b", "c", "c"], agent=["x"] * 4, turn=[0, 0, 0, 1],
                     reward=[1, 0, 1, 0], good=[1, 0, 1, 0])  # fmt: skip
    assert adca_grpo(lone)[2:].tolist() == [0.0, 0.0]


def test_adca_alpha_decays() -> None:  # rule 1
    judged = [
        float(
            adca_grpo(table(version=[v] * 4), alpha=0.2, alpha_end=0.1, decay=10)[0] - adca_grpo(table(), alpha=0.0)[0]
        )
        for v in (0, 5, 10, 50)
    ]
    full = float(adca_grpo(table(), alpha=0.2)[0] - adca_grpo(table(), alpha=0.0)[0])
    assert judged == pytest.approx([full, 0.75 * full, 0.5 * full, 0.5 * full], abs=1e-5)


def test_adca_bad_input() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="good"):
        adca_grpo(table(good=None))
    with pytest.raises(InvalidData, match=r"1 of 4 steps have no flag 0 or 1; the first has 0\.5") as caught:
        adca_grpo(table(good=[1.0, 0.5, 0.0, 1.0]))
    assert "trajectory a, turn 1" in str(caught.value) and "none is filled in silently" in str(caught.value)
    with pytest.raises(InvalidData, match="it has 3 values for 4 rows"):
        table(good=[1, 0, 1])
    with pytest.raises(RecipeError, match="cannot take `scheme: "):
        adca_grpo(table(), scheme="share")
    with pytest.raises(InvalidData, match="no peer set has two members"):
        adca_grpo(table(trajectory=["a"] * 4, turn=range(4)))
    with pytest.raises(InvalidData, match="the weights of a trajectory's steps sum to 0"):
        adca_grpo(table(good=[0, 0, 0, 1]), scheme="allocation", bad_in_success=0.0)


# ---- GiGPO over similar texts -----------------------------------------------------------------------------
def test_similar_states_are_compared() -> None:  # rule 1
    near = table(state_key=["1", "2", "3", "4"], state_text=["a large hall", "a door", "a large halls", "a yard"])
    assert torch.equal(gigpo(near), dr_grpo(near))
    step = gigpo(near, similarity=0.9) - dr_grpo(near)
    assert close(step, [0.475, 0, -0.475, 0])


@quick
@given(tables(), st.sampled_from(["none", "std"]))
def test_unlike_texts_are_states(some: StepTable, scale: Any) -> None:  # rule 2
    texts = {"hall": "xxxx", "door": "yyyy", "yard": "zzzz"}
    names = some.labels("state_key")
    told = some.replace(state_text=[texts[names[code]] for code in some["state_key"].tolist()])
    assert torch.equal(gigpo(told, similarity=0.5, scale=scale), gigpo(some, scale=scale))


def test_similarity_bad_input() -> None:  # rule 3
    for similarity in (0.0, 1.0, 1.5):
        with pytest.raises(RecipeError, match="cannot take `similarity: "):
            gigpo(table(), similarity=similarity)
    with pytest.raises(InvalidData, match="similarity compares texts, and it holds 7"):
        gigpo(table(state_text=[7, 7, 8, 8]), similarity=0.9)
    with pytest.raises(MissingColumn, match="state_text"):
        gigpo(table(state_text=None), similarity=0.9)
