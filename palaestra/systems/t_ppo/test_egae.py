"""EGAE:

1. On finished trajectories it is PPO, with Monte Carlo targets.
2. On unfinished ones the last unit's δ is its own reward when gamma is 1, and there are no targets.
3. Finished and unfinished trajectories do not affect each other.
4. A trajectory with several agents is finished when all of them are.
5. It keeps the contract of estimators.
6. Whitening uses fresh units only.
7. Bad input is refused.
8. A million rows take less than a second on an idle machine.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import reward_to_go
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.critics import ppo
from palaestra.systems.t_ppo.egae import egae
from palaestra.testing import check_estimator
from tests.parts.tables import close, quick, shuffled, tables

LEVELS = ("row", "token")
CHAIN = ("trajectory", "agent")


def opened(table: StepTable, which: torch.Tensor) -> StepTable:
    """The table without the end flags of these rows' trajectories."""
    return table.replace(**{flag: table[flag] & ~which for flag in ("terminated", "truncated")})


@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables())
def test_finished(level: Any, table: StepTable) -> None:  # rule 1
    options = {"level": level, "gamma": 0.9, "lam": 0.8}
    found = egae(table, **options)
    assert torch.equal(found.advantage, ppo(table, whiten=False, **options).advantage)
    if bool(table["terminated"].any()):
        expected = reward_to_go(table, gamma=0.9, level=level, by=CHAIN)
        assert close(found.target, expected)


@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables(agents=("M",)))
def test_unfinished(level: Any, table: StepTable) -> None:  # rule 2
    table = opened(table, torch.ones(len(table), dtype=torch.bool))
    found = egae(table, level=level, gamma=1.0)
    order, last = table.timeline(*CHAIN)
    rows = order[last]
    units = rows if level == "row" else (table["token_count"].cumsum(0) - 1)[rows]
    assert close(found.advantage[units], table["reward"][rows])
    assert bool(found.target.isnan().all())


@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables())
def test_side_by_side(level: Any, table: StepTable) -> None:  # rule 3
    half = table["trajectory"] % 2 == 0
    mixed, whole = egae(opened(table, half), level=level), egae(table, level=level)
    none = egae(opened(table, half | ~half), level=level)
    unfinished = half if level == "row" else half[table.token_row]
    assert torch.equal(mixed.advantage, torch.where(unfinished, none.advantage, whole.advantage))
    assert torch.equal(mixed.target.isnan(), unfinished)


def test_several_agents() -> None:  # rule 4
    table = StepTable(
        group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x", "y", "x", "y"], turn=[0, 1, 0, 1],
        reward=[1.0, 0.0, 1.0, 0.0], row_value=[0.5] * 4, terminated=[True, False, True, True], truncated=[False] * 4,
    )  # fmt: skip
    found = egae(table, level="row")
    assert found.advantage.tolist() == [0.5, 0.0, 0.5, -0.5]
    assert found.target.isnan().tolist() == [True, True, False, False], "in `a`, x has ended and y has not"


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_contract(level: Any, whiten: bool, table: StepTable, seed: int) -> None:  # rule 5
    if table.tokens < 4:
        return
    table = opened(table, table["trajectory"] % 2 == 0)
    check_estimator(egae, table, order=shuffled(table, seed), level=level, whiten=whiten)


@quick
@given(table=tables(agents=("M",)))
def test_whitening(table: StepTable) -> None:  # rule 6
    new = (torch.arange(len(table)) % 2 == 0).float()
    if int(new.sum()) < 2:
        return
    table = table.replace(fresh=new)
    plain, white = egae(table, level="row"), egae(table, level="row", whiten=True)
    assert torch.equal(white.target, plain.target)
    kept, raw = white.advantage[new > 0].double(), plain.advantage[new > 0].double()
    assert bool((white.advantage[new == 0] == 0).all())
    if float(raw.max() - raw.min()) > 1e-3:
        assert abs(float(kept.mean())) < 1e-4 and abs(float(kept.var()) - 1) < 1e-3


def one_row(**columns: Any) -> StepTable:
    base = {"group": ["g"], "trajectory": ["t"], "agent": ["x"], "turn": [0], "reward": [0.0], "row_value": [0.5]}
    return StepTable(**{**base, "terminated": [False], "truncated": [False], **columns})


def test_bad_input() -> None:  # rule 7
    with pytest.raises(MissingColumn, match="no critic has given values"):
        egae(one_row())
    with pytest.raises(MissingColumn, match="neither `terminated` nor `truncated`"):
        egae(one_row(terminated=None, truncated=None), level="row")
    with pytest.raises(MissingColumn, match="bootstrap_value"):
        egae(one_row(truncated=[True]), level="row")
    with pytest.raises(InvalidData, match="not finite"):
        egae(one_row(row_value=[float("inf")]), level="row")
    for option in ({"gamma": 1.5}, {"lam": -0.1}, {"level": "turn"}):
        with pytest.raises(RecipeError, match=next(iter(option))):
            egae(one_row(), **option)


def test_speed() -> None:  # rule 8
    size, long = 1_000_000, 100
    place = torch.arange(size)
    ends = (place % long == long - 1) & (place // long % 2 == 0)
    table = StepTable(
        group=place // long, trajectory=place // long, agent=torch.zeros(size), turn=place % long,
        reward=torch.zeros(size), row_value=torch.rand(size), terminated=ends, truncated=torch.zeros_like(ends),
    )  # fmt: skip
    started = time.perf_counter()
    egae(table, level="row")
    assert time.perf_counter() - started < 5, "above a second only on a busy machine"
