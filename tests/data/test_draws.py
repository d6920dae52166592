"""Draws: (1) a row's number depends on seed, purpose and act, not on where the row stands; (2) numbers are uniform and
unlike for neighboring acts.
"""

from __future__ import annotations

import torch

from palaestra.data import StepTable, row_draws


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
