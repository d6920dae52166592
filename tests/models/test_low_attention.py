"""Attention a few queries at a time: (1) values and gradients are those of the plain computation, for groups of heads,
earlier keys, masks and any number of queries; (2) in bfloat16 they are as near as plain products; (3) no scores are
kept.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from palaestra.models import low_attention as tested
from palaestra.models.low_attention import low_attention


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if mask is None:
        mask = torch.full(scores.shape[2:], -torch.inf, dtype=query.dtype).triu(1)
    return (scores + mask).softmax(-1) @ value


def inputs(queries: int, keys: int, dtype: torch.dtype, heads: int = 6, groups: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(queries + keys)
    shapes = [(1, heads, queries, 8), (1, groups, keys, 8), (1, groups, keys, 8)]
    return [torch.randn(shape, generator=draw).to(dtype).requires_grad_() for shape in shapes]


def tree(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """A mask in which queries see themselves, some earlier queries and some of the keys before."""
    draw = torch.Generator().manual_seed(3)
    seen = torch.rand(queries, keys, generator=draw) < 0.4
    seen = seen.tril(keys - queries)
    seen[torch.arange(queries), torch.arange(queries) + keys - queries] = True
    return torch.zeros(1, 1, queries, keys, dtype=dtype).masked_fill_(~seen, -torch.inf)


def results(way: object, given: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    out = way(*given, mask, 0.3)  # type: ignore[operator]
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), given)]


SIZES = [(1, 1), (5, 5), (8, 8), (11, 11), (1, 7), (9, 14), (16, 30)]


@pytest.mark.parametrize(
    ("queries", "keys", "masked"), [(q, k, masked) for q, k in SIZES for masked in (True, False) if masked or q == k]
)
def test_1_the_plain_numbers(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, masked: bool) -> None:
    monkeypatch.setattr(tested, "QUERIES", 4)
    given = inputs(queries, keys, torch.float32)
    mask = tree(queries, keys, torch.float32) if masked else None
    for ours, theirs in zip(results(low_attention, given, mask), results(plain, given, mask), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_2_bfloat16(masked: bool) -> None:
    given = inputs(300, 300, torch.bfloat16)
    exact = [one.detach().float().requires_grad_() for one in given]
    mask = tree(300, 300, torch.float32) if masked else None
    low = None if mask is None else mask.bfloat16()
    rows = zip(results(low_attention, given, low), results(plain, given, low), results(plain, exact, mask), strict=True)
    for ours, products, right in rows:
        error = (ours.float() - right).norm()
        assert error < 0.02 * right.norm() and error < 1.2 * (products.float() - right).norm()


def test_3_no_scores_are_kept() -> None:
    given = inputs(300, 300, torch.bfloat16)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        low_attention(*given, None, 0.3)
    assert kept and max(x.numel() for x in kept) <= max(300 * 6 * 8, tested.QUERIES**2)
