"""Attention in bfloat16 on the CPU, for training: a few queries at a time, with memory for none of the weights.

torch's own kernel takes several times as long in its backward pass there, and plain products keep all pairs of queries
and keys, which is more than all else of a pass. Here the scores of some queries exist in the processor's cache alone.
The backward pass computes them again, as in FlashAttention (arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

QUERIES = 128  # at a time


def low_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """softmax(scaling · q kᵀ + mask) v, of shape (1, heads, queries, width).

    Args:
        query: (1, heads, queries, width). key, value: (1, groups, keys, width); `heads` is a multiple of `groups`, and
            the heads of a group lie side by side. The last keys are those of the queries; none sees a later one.
        mask: (1, 1, queries, keys), 0 or −∞; None: each query sees all keys up to its own.
    """
    if mask is None:
        count = min(QUERIES, query.shape[2])
        mask = torch.full((count, count), -torch.inf, device=query.device).triu(1)
        return _Attention.apply(query[0], key[0], value[0], mask, scaling, True)[None]  # type: ignore[no-any-return]
    return _Attention.apply(query[0], key[0], value[0], mask[0, 0], scaling, False)[None]  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    """query (heads, queries, width), key and value (groups, keys, width) ↦ (heads, queries, width)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, causal: bool
    ) -> Tensor:
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        sums = query.new_empty(query.shape[:2], dtype=torch.float32)
        for part, reach in _parts(query, key):
            scores = _scores(query, key, mask, scaling, causal, part, reach)
            found = scores.logsumexp(-1, keepdim=True)
            weights = scores.sub_(found).exp_().to(query.dtype)
            sums[:, part] = found.view(len(query), -1)
            out[:, part] = torch.bmm(weights, value[:, :reach]).view(len(query), -1, value.shape[-1])
        ctx.scaling, ctx.causal = scaling, causal
        ctx.save_for_backward(query, key, value, mask, out, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, mask, out, sums = ctx.saved_tensors
        (of_out,) = gradients
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros(one.shape, dtype=torch.float32, device=one.device) for one in (key, value))
        for part, reach in _parts(query, key):
            g, q = _grouped(of_out, part, key), _grouped(query, part, key)
            along = (of_out[:, part].float() * out[:, part]).sum(-1).view(len(key), -1, 1)
            scores = _scores(query, key, mask, ctx.scaling, ctx.causal, part, reach)
            weights = scores.sub_(sums[:, part].reshape(len(key), -1, 1)).exp_()
            of_value[:, :reach] += torch.bmm(weights.to(g.dtype).transpose(1, 2), g)
            of_scores = torch.bmm(g, value[:, :reach].transpose(1, 2)).float()
            of_scores = of_scores.sub_(along).mul_(weights).mul_(ctx.scaling).to(q.dtype)
            of_query[:, part] = torch.bmm(of_scores, key[:, :reach]).view(len(query), -1, query.shape[-1])
            of_key[:, :reach] += torch.bmm(of_scores.transpose(1, 2), q)
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None, None, None


def _parts(query: Tensor, key: Tensor) -> Iterator[tuple[slice, int]]:
    """Some queries, and how many keys they can see."""
    count, before = query.shape[1], key.shape[1] - query.shape[1]
    for start in range(0, count, QUERIES):
        stop = min(start + QUERIES, count)
        yield slice(start, stop), before + stop


def _grouped(x: Tensor, part: slice, key: Tensor) -> Tensor:
    """(heads, queries, width) ↦ (groups, heads of a group · some queries, width)."""
    return x[:, part].reshape(len(key), -1, x.shape[-1])


def _scores(query: Tensor, key: Tensor, mask: Tensor, scaling: float, causal: bool, part: slice, reach: int) -> Tensor:
    """Masked scores in float32, (groups, heads of a group · some queries, reach)."""
    q = _grouped(query, part, key)
    scores = torch.bmm(q, key[:, :reach].transpose(1, 2)).float().mul_(scaling)
    size = part.stop - part.start
    by_query = scores.view(-1, size, reach)
    if causal:
        by_query[:, :, part.start :].add_(mask[:size, :size])
    else:
        by_query.add_(mask[part, :reach])
    return scores
