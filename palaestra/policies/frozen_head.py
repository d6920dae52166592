"""Log-probabilities and entropies of tokens from an output layer that is not trained, with little memory.

The log-probability of a token is one number, so its gradient with respect to the token's hidden state is a vector of
the model's width: dW with d = onehot(taken) − p, where W (vocabulary, width) is the weight and p the probabilities. The
forward pass computes it at once, for a few tokens at a time. No logits are kept, and none are computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from palaestra.models.products import are_fast, fast_products
from palaestra.models.sharding import is_spread
from palaestra.policies.outputs import TOKEN_OUTPUTS, TokenOutput

# Logits at a time. On a CPU they should stay in its cache. A few rows are needed for fast products.
LOGITS = {"cpu": 2**22}
MOST_LOGITS = 2**26  # elsewhere
FEWEST_ROWS = 64


def rows_at_once(vocabulary: int, device: str) -> int:
    """For how many tokens logits are computed at a time."""
    return max(FEWEST_ROWS, LOGITS.get(device, MOST_LOGITS) // vocabulary)


def is_frozen(head: Any) -> bool:
    """Whether it is a linear layer without a bias, which is not trained and has no additions."""
    plain = type(head) is nn.Linear and head.bias is None and not is_spread(head.weight)
    return plain and not head.weight.requires_grad and not head._forward_hooks and not head._forward_pre_hooks


def covers(functions: Mapping[str, TokenOutput], wanted: Any) -> bool:
    """Whether these outputs are among those that `frozen_head` gives, with their usual functions."""
    return all(functions[name] is TOKEN_OUTPUTS.get(name) for name in wanted)


def frozen_head(hidden: Tensor, head: nn.Linear, taken: Tensor, temperature: float) -> dict[str, Tensor]:
    """The outputs "logprob" and "entropy" (tokens,) of the taken ids, in float32.

    Args:
        hidden: (tokens, width), with gradient. head: see `is_frozen`. taken: int64 (tokens,).
        temperature: divides the logits; 0 counts as 1.
    """
    wanted = torch.is_grad_enabled() and hidden.requires_grad
    logprob, entropy = _Head.apply(hidden, head.weight, taken, temperature or 1.0, wanted)
    return {"logprob": logprob, "entropy": entropy}


class _Head(torch.autograd.Function):
    """hidden, weight, taken, temperature ↦ log p(taken), −Σ p log p; `wanted` says whether a gradient will be asked."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, taken: Tensor, temperature: float, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.fast = temperature, are_fast()
        rows = rows_at_once(len(weight), hidden.device.type)
        slopes, logprobs, entropies = [], [], []
        for h, t in zip(hidden.split(rows), taken.split(rows), strict=True):
            log_p = _log_p(h, weight, temperature)
            p = log_p.exp()
            logprobs.append(log_p.gather(1, t[:, None])[:, 0])
            entropies.append(_entropy(p, log_p))
            if wanted:
                d = p.neg_().scatter_add_(1, t[:, None], torch.ones_like(t, dtype=p.dtype)[:, None])
                slopes.append(_back(d, weight, temperature))
        slope = torch.cat(slopes) if slopes else None
        ctx.save_for_backward(hidden, weight, slope)
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None) -> Any:
        hidden, weight, slope = ctx.saved_tensors
        gradient = torch.zeros_like(hidden)
        if of_logprob is not None:
            gradient += of_logprob[:, None].to(slope.dtype) * slope
        if of_entropy is not None:  # rarely: an entropy bonus. Its logits are computed again
            rows = rows_at_once(len(weight), hidden.device.type)
            with fast_products(ctx.fast):
                slopes = [_entropy_slope(h, weight, ctx.temperature) for h in hidden.split(rows)]
            gradient += of_entropy[:, None].to(hidden.dtype) * torch.cat(slopes)
        return gradient, None, None, None, None


def _log_p(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Log-probabilities (tokens, vocabulary), in float32 at least."""
    logits = F.linear(hidden, weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return torch.log_softmax(logits, -1)


def _entropy(p: Tensor, log_p: Tensor) -> Tensor:
    return -(p * log_p.clamp_min(torch.finfo(torch.float32).min)).sum(-1)


def _entropy_slope(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """The gradient (tokens, width) of the entropies: −p (log p + H), times the weight."""
    log_p = _log_p(hidden, weight, temperature).clamp_min(torch.finfo(torch.float32).min)
    p = log_p.exp()
    entropy = _entropy(p, log_p)
    return _back((log_p + entropy[:, None]).mul_(p).neg_(), weight, temperature)


def _back(d: Tensor, weight: Tensor, temperature: float) -> Tensor:
    product = F.linear(d.to(weight.dtype), weight.t())
    return product if temperature == 1.0 else product / temperature
