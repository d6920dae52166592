"""SRGPO:

1. Each row is in one block; blocks are centered and stay in their scope; the seed and the iteration decide which rows
   are compared.
2. With weight 0 or equal scores it is GRPO.
3. Missing scores, too small blocks and single rows are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.srgpo import srgpo as srgpo_part
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


def srgpo(table: StepTable, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """The part in an iteration of this seed."""
    return srgpo_part(table, Iteration(seed=seed), **options)


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
    with pytest.raises(InvalidData, match="has 1 rows that count; a comparison needs 2"):
        srgpo(table(row_weight=[1.0, 0.0, 0.0, 0.0]))
    with pytest.raises(RecipeError, match="block_scope"):
        srgpo(table(), block_scope="task")
