"""Random token batches: trajectories of several rows and lengths, some tokens masked."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st

from palaestra.data import TokenBatch

quick = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def batches(draw: st.DrawFn, *, one_token: bool = False, on_policy: bool = False) -> TokenBatch:
    """Two to four trajectories with every column; float64."""
    rows = draw(
        st.lists(st.lists(st.integers(1, 1 if one_token else 3), min_size=1, max_size=3), min_size=2, max_size=4)
    )
    return filled(rows, draw(st.integers(0, 10**6)), on_policy=on_policy)


def filled(rows: list[list[int]], seed: int, *, on_policy: bool = False) -> TokenBatch:
    """A batch whose trajectories have these rows of these numbers of tokens, filled from `seed`."""
    dice = torch.Generator().manual_seed(seed)
    tokens = sum(map(sum, rows))
    trajectory = [i for i, lengths in enumerate(rows) for n in lengths for _ in range(n)]
    row = [r for r, n in enumerate(n for lengths in rows for n in lengths) for _ in range(n)]

    def normal(scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(tokens, generator=dice, dtype=torch.float64)

    logprob = -normal().abs() - 0.1
    weight = (torch.rand(tokens, generator=dice) > 0.2).double()
    return TokenBatch(
        advantage=normal(),
        logprob=logprob,
        proximal=logprob.clone() if on_policy else logprob + normal(0.2),
        behavior=logprob + normal(0.1),
        reference=logprob + normal(0.3),
        weight=weight * (1 + torch.rand(tokens, generator=dice, dtype=torch.float64)),
        row=torch.tensor(row),
        sequence=torch.tensor(row),
        trajectory=torch.tensor(trajectory),
        group=torch.tensor(trajectory) // 2,
        agent=torch.tensor(row) % 2,
        invocation=2 * torch.tensor(trajectory) + torch.tensor(row) % 2,
        entropy=normal().abs(),
        value=normal(),
        value_old=normal(),
        value_target=normal(),
        value_weight=(torch.rand(tokens, generator=dice) > 0.3).double(),
        foreign=(torch.tensor(trajectory) % 2).double(),
        whole=frozenset({"row", "sequence", "invocation", "trajectory", "group"}),
        more={
            "outcome": (torch.tensor(trajectory) % 3 % 2).double(),
            "token_entropy": normal().abs(),
            "branch": torch.zeros(tokens, dtype=torch.float64),
            "twin": torch.tensor(trajectory).double(),
        },
    )
