"""Draws tokens: computes their distribution, and draws from it with numbers that depend only on seed and position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from palaestra.data.entropy_signal import EntropyTemperature, factors

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Tokens of which one sum is kept while a token is drawn.
SPAN = 256
# Rows of logits are read in groups of so many numbers, which stay in a processor's cache from step to step.
CACHED = 2**18


class Draw(NamedTuple):
    """One token per row: tokens int64 (rows,), logprobs float32 (rows,), entropy float32 (rows,) in nats or None."""

    tokens: Tensor
    logprobs: Tensor
    entropy: Tensor | None


def uniform(seeds: Sequence[int], counters: Sequence[int]) -> np.ndarray:
    """Uniform numbers in [0, 1), float64 (n,): number `counters[i]` of the stream of `seeds[i]`.

        u = mix(mix(seed) + golden · (counter + 1)) / 2⁶⁴        (splitmix64, upper 53 bits)

    The generator has no state, so that a draw depends only on its seed and its position in the response.
    """
    keys = np.array([seed & _MASK for seed in seeds], np.uint64)
    places = np.asarray(counters, np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(keys) + places * np.uint64(_GOLDEN))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def log_distribution(
    logits: Tensor, *, temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float]
) -> Tensor:
    """Log-probabilities of the distribution that tokens are drawn from, float32 (rows, vocabulary).

        log softmax(logits / temperature)   over the top_k most likely tokens, and of these over the fewest
                                            whose probability reaches top_p; −∞ for all other tokens

    Args:
        logits: (rows, vocabulary).
        temperature: one per row; 0 is greedy: the first of the most likely tokens has the probability 1.
        top_k: one per row; 0: no limit.
        top_p: one per row, in (0, 1]; 1: no limit.
    """
    at = torch.tensor(temperature, dtype=torch.float32, device=logits.device)[:, None]
    scaled = logits.float()
    if any(value != 1 for value in temperature):
        scaled = scaled / torch.where(at > 0, at, 1.0)
    if any(top_k) or any(p < 1 for p in top_p):
        scaled = scaled.masked_fill(~_kept(scaled, top_k, top_p), -torch.inf)
    logprobs = torch.log_softmax(scaled, -1)
    if 0 in temperature:
        likeliest = logits.argmax(-1, keepdim=True)
        value = logprobs.gather(1, likeliest)
        best = torch.full_like(logprobs, -torch.inf).scatter_(1, likeliest, value - value)  # 0, or not a number
        logprobs = torch.where(at > 0, logprobs, best)
    return logprobs


def token_temperatures(
    logits: Tensor, *, temperature: Sequence[float], entropy_temperature: Sequence[EntropyTemperature | None]
) -> tuple[list[float], list[float | None]]:
    """The temperature at which each row's next token is drawn.

    Args:
        logits: (rows, vocabulary).
        temperature: one per row. entropy_temperature: one per row, changes the temperature by the entropy of the
            token; None: the temperature stays.

    Returns: the temperatures, and the entropies (in nats, at the given temperature) that changed them, None elsewhere.
    """
    rows = [row for row, value in enumerate(entropy_temperature) if value is not None]
    temperatures, before = list(temperature), list[float | None]([None] * len(temperature))
    if rows:
        base = log_distribution(
            logits[rows],
            temperature=[temperatures[row] for row in rows],
            top_k=[0] * len(rows),
            top_p=[1.0] * len(rows),
        )
        entropy = torch.special.entr(base.exp()).sum(-1)
        changed = factors([entropy_temperature[row] for row in rows], entropy).tolist()
        for row, factor, value in zip(rows, changed, entropy.tolist(), strict=True):
            temperatures[row], before[row] = temperatures[row] * factor, value
    return temperatures, before


def _kept(scaled: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> Tensor:
    """The tokens that top_k and top_p keep: bool (rows, vocabulary). Of equally likely tokens lower ids come first."""
    size = scaled.shape[-1]
    most = torch.tensor([min(k or size, size) for k in top_k], device=scaled.device)[:, None]
    reach = torch.tensor([p if p < 1 else torch.inf for p in top_p], device=scaled.device)[:, None]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    kept = torch.arange(size, device=scaled.device) < most
    probabilities = torch.softmax(ordered.masked_fill(~kept, -torch.inf), -1)
    before = probabilities.cumsum(-1) - probabilities
    kept &= before < reach
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept)


def sample(
    logits: Tensor,
    uniforms: np.ndarray,
    *,
    temperature: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    entropy: bool = False,
) -> Draw:
    """Draw one token per row from `log_distribution` of these logits. On a CPU, a few rows at a time.

    Where a row's logits are not finite, so is the log-probability. A logit may be −∞.
    """
    rows, size = logits.shape
    step = max(1, CACHED // size) if logits.device.type == "cpu" else rows
    drawn = []
    for begin in range(0, rows, step):
        mine = slice(begin, begin + step)
        logprobs = log_distribution(logits[mine], temperature=temperature[mine], top_k=top_k[mine], top_p=top_p[mine])
        drawn.append(draw(logprobs, uniforms[mine], entropy=entropy))
    if len(drawn) == 1:
        return drawn[0]
    entropies = [one.entropy for one in drawn if one.entropy is not None]
    return Draw(
        torch.cat([one.tokens for one in drawn]),
        torch.cat([one.logprobs for one in drawn]),
        torch.cat(entropies) if entropies else None,
    )


def draw(logprobs: Tensor, uniforms: np.ndarray, *, entropy: bool = False) -> Draw:
    """The token at which the cumulative distribution passes the uniform number (inverse transform).

    In a large vocabulary, sums of spans say in which span the token is. Only that span is added up token by token.

    Args:
        logprobs: float32 (rows, vocabulary), of `log_distribution`.
        uniforms: float64 (rows,), in [0, 1).
        entropy: also return −Σ p log p of each row.
    """
    probabilities = logprobs.exp()
    numbers = torch.from_numpy(uniforms).to(logprobs.device)[:, None]
    tokens = (
        _one_level(probabilities, numbers) if logprobs.shape[1] <= 4 * SPAN else _two_levels(probabilities, numbers)
    )
    chosen = logprobs.gather(1, tokens)[:, 0]
    return Draw(tokens[:, 0], chosen, torch.special.entr(probabilities).sum(-1) if entropy else None)


def _one_level(probabilities: Tensor, numbers: Tensor) -> Tensor:
    parts = probabilities.double()
    return _passed(parts, numbers * parts.sum(-1, keepdim=True))[0]


def _two_levels(probabilities: Tensor, numbers: Tensor) -> Tensor:
    size = probabilities.shape[1]
    whole = size // SPAN * SPAN
    spans = probabilities[:, :whole].unflatten(1, (-1, SPAN)).double().sum(-1)
    if whole < size:
        spans = torch.cat((spans, probabilities[:, whole:].double().sum(-1, keepdim=True)), 1)
    span, before, target = _passed(spans, numbers * spans.sum(-1, keepdim=True))
    places = span * SPAN + torch.arange(SPAN, device=probabilities.device)
    inside = probabilities.gather(1, places.clamp(max=size - 1)).double()
    if whole < size:
        inside = inside.masked_fill_(places >= size, 0.0)
    place = _passed(inside, target - before)[0]
    return (span * SPAN + place).clamp_(max=size - 1)


def _passed(parts: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the cumulative sum of the parts passes the target: the place (rows, 1), the sum before it, and the target.

    Rounding can raise a target to the total, which lies behind the last part above 0. It is then lowered.
    """
    cumulative = parts.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, target, right=True).clamp_(max=parts.shape[1] - 1)
    before = torch.where(place > 0, cumulative.gather(1, (place - 1).clamp_(min=0)), 0.0)
    return place, before, target
