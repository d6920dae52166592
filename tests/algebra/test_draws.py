"""Draws: (1) a row's number depends on seed, purpose and act, not on where the row stands; (2) numbers are uniform and
unlike for neighboring acts; (3) a unit of several rows has one number, whatever the order and the number of its rows.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.algebra import row_draws, uniform_per_unit
from palaestra.data import StepTable
from palaestra.errors import MissingColumn


def table(size: int, *, reverse: bool = False) -> StepTable:
    places = [*range(size)][:: -1 if reverse else 1]
    return StepTable(
        group=["g"] * size,
        trajectory=[f"000001-00000/{p // 10}" for p in places],
        agent=["xy"[p % 2] for p in places],
        turn=[p % 10 for p in places],
        reward=[0.0] * size,
    )


def test_order_plays_no_part() -> None:  # rule 1
    draws = row_draws(table(200), seed=3, purpose="a")
    assert torch.equal(draws, row_draws(table(200, reverse=True), seed=3, purpose="a").flip(0))
    assert torch.equal(draws[:50], row_draws(table(50), seed=3, purpose="a"))


def test_names_play_one() -> None:  # rule 1
    draws = [row_draws(table(200), seed=s, purpose=p) for s, p in ((3, "a"), (4, "a"), (3, "b"))]
    assert all(not bool((a == b).any()) for a, b in ((draws[0], draws[1]), (draws[0], draws[2])))
    assert len(set(draws[0].tolist())) == 200


def test_they_are_uniform() -> None:  # rule 2
    draws = row_draws(table(20_000), seed=0, purpose="a")
    assert bool(((draws >= 0) & (draws < 1)).all())
    share = torch.histc(draws.float(), bins=10, min=0, max=1) / len(draws)
    assert float((share - 0.1).abs().max()) < 0.01
    neighbors = torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1]
    assert abs(float(neighbors)) < 0.03


def test_one_number_a_unit() -> None:  # rule 3
    one, other = table(200), table(200, reverse=True)
    draws = uniform_per_unit(one, seed=3, purpose="a")
    by_trajectory = draws.view(20, 10)
    assert bool((by_trajectory == by_trajectory[:, :1]).all()) and len(set(draws.tolist())) == 20
    assert torch.equal(draws, uniform_per_unit(other, seed=3, purpose="a").flip(0))
    assert torch.equal(draws[:15], uniform_per_unit(table(15), seed=3, purpose="a")), "half of its rows are missing"
    for changed in ({"seed": 4, "purpose": "a"}, {"seed": 3, "purpose": "b"}):
        assert not bool((uniform_per_unit(one, **changed) == draws).any())  # type: ignore[arg-type]
    pairs = uniform_per_unit(one, ("trajectory", "agent"), seed=3, purpose="a")
    assert len(set(pairs.tolist())) == 40
    acts = uniform_per_unit(one, ("trajectory", "agent", "turn"), seed=3, purpose="a")
    assert torch.equal(acts, row_draws(one, seed=3, purpose="a"))
    assert len(set(uniform_per_unit(one, ("turn",), seed=3, purpose="a").tolist())) == 10
    tagged = one.replace(place=[0.25 * (p % 4) for p in range(200)])
    assert len(set(uniform_per_unit(tagged, ("place",), seed=3, purpose="a").tolist())) == 4
    with pytest.raises(MissingColumn, match="trajectry"):
        uniform_per_unit(one, ("trajectry",), seed=3, purpose="a")


def test_draws_stay() -> None:  # rule 1
    assert row_draws(table(2), seed=3, purpose="a").tolist() == pytest.approx(
        [0.3004735551227826, 0.04555493677928879], abs=1e-15
    )
