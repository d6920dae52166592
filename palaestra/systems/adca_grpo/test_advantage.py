"""ADCA-GRPO:

1. The scores of steps are standardized, the outcome counts once, and the weight of the scores decays.
2. With alpha 0, or with equal flags, it is GRPO with the population deviation.
3. Bad input is refused with a clear message.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import segment_sum
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.adca_grpo.advantage import adca_grpo
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


@quick
@given(tables(), st.sampled_from(["decouple", "allocation"]))
def test_adca_without_judge(some: StepTable, scheme: Any) -> None:  # rule 2
    assert close(adca_grpo(some, alpha=0.0, scheme=scheme), grpo(some, ddof=0))


@quick
@given(tables())
def test_adca_with_equal_flags(some: StepTable) -> None:  # rule 2
    praise = some.replace(good=torch.ones(len(some)))
    assert close(adca_grpo(praise), grpo(some, ddof=0), tolerance=1e-3)


@quick
@given(tables())
def test_adca_scores_are_standard(some: StepTable) -> None:  # rule 1
    """Without rewards, A at the first step is alpha times the sum of z; its mean over a group is 0."""
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
    praise = [a[2] - a[3] for a in blame]  # contribution of the good step of the failure
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
    with pytest.raises(InvalidData, match=r"1 of 4 steps have a flag that is neither .*; the first has 0\.5") as caught:
        adca_grpo(table(good=[1.0, 0.5, 0.0, 1.0]))
    assert "trajectory a, turn 1" in str(caught.value) and "missing flags are not filled in" in str(caught.value)
    with pytest.raises(InvalidData, match="it has 3 values for 4 rows"):
        table(good=[1, 0, 1])
    with pytest.raises(RecipeError, match="cannot take `scheme: "):
        adca_grpo(table(), scheme="share")
    with pytest.raises(InvalidData, match="no peer set has two members"):
        adca_grpo(table(trajectory=["a"] * 4, turn=range(4)))
    with pytest.raises(InvalidData, match="the weights of a trajectory's steps sum to 0"):
        adca_grpo(table(good=[0, 0, 0, 1]), scheme="allocation", bad_in_success=0.0)
