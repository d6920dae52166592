"""Token batches: random ones of several rows and lengths, some tokens masked, and ones made by hand."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from palaestra.data import TokenBatch

quick = settings(max_examples=25, deadline=None, derandomize=True)
WHOLE = frozenset({"row", "sequence", "invocation", "trajectory", "group"})


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


def batch(trajectory: list[int], group: list[int], *, whole: frozenset[str] = WHOLE, **columns: Any) -> TokenBatch:
    """A batch of one token a row, by hand; what is not given is 0."""
    size = len(trajectory)
    numbers = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    more = {name: numbers.pop(name) for name in ("outcome", "branch", "twin") if name in numbers}
    filled = {name: torch.zeros(size, dtype=torch.float64) for name in ("advantage", "logprob", "proximal")}
    return TokenBatch(
        **{**filled, "weight": torch.ones(size, dtype=torch.float64), **numbers},
        row=torch.arange(size),
        sequence=torch.tensor(trajectory),
        trajectory=torch.tensor(trajectory),
        group=torch.tensor(group),
        whole=whole,
        more=more,
    )


def gradient(loss: Any, given: TokenBatch, **options: Any) -> torch.Tensor:
    """The gradient of a loss's sum by the log-probabilities."""
    leaf = given.logprob.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(given.replace(logprob=leaf), **options)[0].sum(), leaf)
    return found
