"""POAD and NTPO: (1) with lam 1 and a terminal reward, POAD gives every token of action k the target gamma^(K − k) · R;
under NTPO the target shrinks by gamma for each token to come.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.systems.poad.advantage import poad
from palaestra.systems.poad.ntpo import ntpo
from tests.parts.tables import close, quick


@quick
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from([0.5, 0.9, 1.0]))
def test_terminal_reward(lengths: list[int], gamma: float) -> None:  # rule 1
    last, tokens = len(lengths) - 1, sum(lengths)
    table = StepTable(
        group=["g"] * len(lengths),
        trajectory=["t"] * len(lengths),
        agent=["x"] * len(lengths),
        turn=range(len(lengths)),
        reward=[0.0] * last + [2.0],
        token_count=lengths,
        value_old=torch.linspace(-1, 1, tokens),
        terminated=[False] * last + [True],
    )
    action = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    expected = 2 * gamma ** (last - action).double()
    assert close(poad(table, gamma=gamma, lam=1.0, whiten=False).target, expected)
    assert close(ntpo(table, gamma=gamma, lam=1.0, whiten=False).target, 2 * gamma ** torch.arange(tokens).flip(0))
