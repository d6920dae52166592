"""Stratified GRPO:

1. The variance is the sum of that inside strata and that between them, and an affine change of the returns changes
   nothing inside a stratum.
2. One stratum, or blend 0, is GRPO, and strata of one trajectory leave the global part.
3. Missing, mixed and result-dependent strata and bad options are refused.
4. Trajectories that a limit cut off before they had a stratum are a stratum of their own.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import segment_mean, segment_std, standardize, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.stratified_grpo import stratified_grpo
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


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
    for leak in ("reward", "outcome", "row_value"):
        with pytest.raises(RecipeError, match=f"a stratum cannot be made of `{leak}`"):
            stratified_grpo(table(outcome=[1.0, 1.0, 0.0, 0.0]), strata=("stratum", leak))


@quick
@given(tables(one_row=True))
def test_stratum_of_cut_trajectories(some: StepTable) -> None:  # rule 4
    cut = [place % 2 == 1 for place in range(len(some))]
    labels = [str(some.labels("stratum")[code]) for code in some["stratum"].tolist()]
    lacking = [None if gone else label for gone, label in zip(cut, labels, strict=True)]
    named = ["cut off" if gone else label for gone, label in zip(cut, labels, strict=True)]
    flags = {"truncated": cut, "terminated": [not gone for gone in cut]}
    found, expected = (stratified_grpo(some.replace(stratum=strata, **flags)) for strata in (lacking, named))
    assert close(found, expected)
