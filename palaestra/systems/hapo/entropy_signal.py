"""The entropy signal h: how uncertain a token is among the tokens of its batch, from −1 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.errors import InvalidData

SMALLEST = 1e-8  # tokens with an entropy below it count as equally certain
ROUNDING = 1e-4  # how far below 0 a float32 sum of −p log p may fall


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyScale:
    """The scale on which the log-entropies of one batch are measured.

        e = ln max(H, 1e-8),   z = (e − pivot) / deviation,   h = z / high where z ≥ 0, z / low elsewhere

    Attributes:
        pivot: the log-entropy at which the signal is 0.
        deviation: the root of the mean squared distance of e from the pivot; 1 where all are equal.
        high: > 0, the largest z above the pivot; 1 where there is none.
        low: > 0, the largest −z below the pivot; 1 where there is none.
    """

    pivot: float
    deviation: float
    high: float
    low: float

    def signal(self, entropy: Float[Tensor, " tokens"], *, released_sign: bool = False) -> Float[Tensor, " tokens"]:
        """h in [−1, 1], float64 (tokens,): 1 at the batch's most uncertain token, −1 at its most certain one.

        Args:
            entropy: of tokens of this or another batch, in nats. A signal outside [−1, 1] is cut to −1 or 1.
            released_sign: return |h|, so that no token counts as certain. The authors' released code does this, since
                it divides by the smallest z, which is negative.
        """
        distance = (_logarithm(entropy) - self.pivot) / self.deviation
        signed = torch.where(distance >= 0, distance / self.high, distance / self.low).clamp(-1.0, 1.0)
        return signed.abs() if released_sign else signed


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTemperature:
    """The rule for a token's own temperature: T = T₀ · (1 + strength · h), with h from the entropy at T₀.

    Attributes:
        scale: the scale that h is measured on.
        strength: in [0, 1); 0 keeps T₀ everywhere.
        released_sign: see `EntropyScale.signal`.
    """

    scale: EntropyScale
    strength: float
    released_sign: bool = False

    def factor(self, entropy: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """The factor of T₀ for each token, float64 (tokens,)."""
        return 1 + self.strength * self.scale.signal(entropy, released_sign=self.released_sign)


def entropy_scale(
    entropy: Float[Tensor, " tokens"], *, quantile: float, counts: Bool[Tensor, " tokens"] | None = None
) -> EntropyScale:
    """Make the scale of a batch of entropies.

    Args:
        entropy: in nats.
        quantile: in [0, 1], the quantile of the log-entropies (nearest rank) that is the pivot. Higher: fewer tokens
            count as uncertain.
        counts: which tokens are measured; None: all.

    Raises: InvalidData, if no token counts, or an entropy is negative or not finite.
    """
    measured = entropy if counts is None else entropy[counts]
    if not len(measured):
        raise InvalidData(
            where="entropy_scale(…)",
            what="no token counts, so there is no entropy to measure.",
            remedy="Give at least one token that counts.",
        )
    ordered = _logarithm(measured).sort().values
    pivot = float(ordered[round(quantile * (len(ordered) - 1))])
    away = ordered - pivot
    deviation = math.sqrt(float(away.square().mean())) or 1.0
    high, low = float(away[-1]) / deviation, -float(away[0]) / deviation
    return EntropyScale(pivot=pivot, deviation=deviation, high=high or 1.0, low=low or 1.0)


def _logarithm(entropy: Tensor) -> Tensor:
    """ln max(H, 1e-8), float64. Raises: InvalidData, for an entropy that is negative or not finite."""
    wide = entropy.detach().double()
    if not bool((wide.isfinite() & (wide >= -ROUNDING)).all()):
        worst = wide[~(wide.isfinite() & (wide >= -ROUNDING))][0]
        raise InvalidData(
            where="column `entropy_old`",
            what=f"an entropy is {float(worst):g}; it must be a number ≥ 0.",
            remedy="Give the entropy −Σ p log p in nats, and mask tokens that have none.",
        )
    return wide.clamp_min(SMALLEST).log()
