"""Token batches: random ones of several rows and lengths, some tokens masked, and ones made by hand."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from palaestra.data import TokenBatch
from palaestra.data.tokens import IDS
from palaestra.registry import Part

quick = settings(max_examples=15, deadline=None, derandomize=True)


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
        logprob_old=logprob.clone() if on_policy else logprob + normal(0.2),
        logprob_behavior=logprob + normal(0.1),
        logprob_reference=logprob + normal(0.3),
        weight=weight * (1 + torch.rand(tokens, generator=dice, dtype=torch.float64)),
        row=torch.tensor(row),
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
        scope="minibatch",
        outcome=(torch.tensor(trajectory) % 3 % 2).double(),
        entropy_old=normal().abs(),
        branch=torch.zeros(tokens, dtype=torch.float64),
        pair=torch.tensor(trajectory),
    )


def with_columns_of(part: Part, batch: TokenBatch) -> TokenBatch:
    """The batch with random numbers in the columns that the part must read and the batch lacks."""
    dice = torch.Generator().manual_seed(len(batch))
    names = [name for name in (*(part.reads or ()), *chain(*part.reads_if.values())) if name[-1] != "?"]
    lacking = [name for name in names if name not in batch.columns and name not in IDS]
    return batch.replace(**{name: torch.randn(len(batch), generator=dice, dtype=torch.float64) for name in lacking})


def batch(trajectory: list[int], group: list[int], *, scope: str = "minibatch", **columns: Any) -> TokenBatch:
    """A batch of one token a row, by hand; what is not given is 0."""
    size = len(trajectory)
    numbers = {name: torch.as_tensor(values, dtype=torch.float64) for name, values in columns.items()}
    pair = numbers.pop("pair", None)
    filled = {name: torch.zeros(size, dtype=torch.float64) for name in ("advantage", "logprob", "logprob_old")}
    return TokenBatch(
        row=torch.arange(size),
        trajectory=torch.tensor(trajectory),
        group=torch.tensor(group),
        pair=None if pair is None else pair.long(),
        scope=scope,
        **{**filled, "weight": torch.ones(size, dtype=torch.float64), **numbers},
    )


def gradient(loss: Any, given: TokenBatch, **options: Any) -> torch.Tensor:
    """The gradient of a loss's sum by the log-probabilities."""
    leaf = given["logprob"].clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(given.replace(logprob=leaf), **options)[0].sum(), leaf)
    return found
