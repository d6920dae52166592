"""Token entropy as a signal: how uncertain a token was among the tokens of its batch, from −1 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.errors import InvalidData

SMALLEST = 1e-8  # entropy below which tokens count as equally certain
ROUNDING = 1e-4  # below zero, that float32 sums of −p log p may give


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyScale:
    """What the log-entropies of one batch are measured by.

        e = ln max(H, 1e-8),   z = (e − pivot) / deviation,   h = z / high where z ≥ 0, z / low elsewhere

    Attributes:
        pivot: the log-entropy at which the signal is 0.
        deviation: root of the mean square distance of e from the pivot; 1 where all are equal.
        high, low: > 0, largest z above and largest −z below the pivot; 1 where there is none.
    """

    pivot: float
    deviation: float
    high: float
    low: float

    def signal(self, entropy: Float[Tensor, " tokens"], *, released_sign: bool = False) -> Float[Tensor, " tokens"]:
        """h in [−1, 1], float64 (tokens,): 1 at the most uncertain token of the batch, −1 at the most certain one.

        Args:
            entropy: of these or other tokens; what lies outside the batch's range is cut to −1 and 1.
            released_sign: divide what lies below the pivot by the smallest z, a negative number, as code that was
                released with the method does: h is then |h|, and nothing ever counts as certain.
        """
        distance = (_logarithm(entropy) - self.pivot) / self.deviation
        signed = torch.where(distance >= 0, distance / self.high, distance / self.low).clamp(-1.0, 1.0)
        return signed.abs() if released_sign else signed


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTemperature:
    """A temperature of its own for each token: T = T₀ · (1 + strength · h), with h of the entropy at T₀.

    Attributes:
        scale: that h is measured by. strength: in [0, 1); 0 is T₀ everywhere. released_sign: see `EntropyScale.signal`.
    """

    scale: EntropyScale
    strength: float
    released_sign: bool = False

    def factor(self, entropy: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """What T₀ is multiplied by, float64 (tokens,)."""
        return 1 + self.strength * self.scale.signal(entropy, released_sign=self.released_sign)


def entropy_scale(
    entropy: Float[Tensor, " tokens"], *, quantile: float, counts: Bool[Tensor, " tokens"] | None = None
) -> EntropyScale:
    """The scale of a batch of entropies.

    Args:
        entropy: in nats. counts: which tokens are measured; None: all.
        quantile: in [0, 1], of the log-entropies, the pivot (nearest rank). Higher: fewer tokens count as uncertain.

    Raises: InvalidData, if no token counts, or an entropy is negative or not finite.
    """
    measured = entropy if counts is None else entropy[counts]
    if not len(measured):
        raise InvalidData(where="entropy_scale(…)", what="there is no token to measure.")
    ordered = _logarithm(measured).sort().values
    pivot = float(ordered[round(quantile * (len(ordered) - 1))])
    away = ordered - pivot
    deviation = math.sqrt(float(away.square().mean())) or 1.0
    high, low = float(away[-1]) / deviation, -float(away[0]) / deviation
    return EntropyScale(pivot=pivot, deviation=deviation, high=high or 1.0, low=low or 1.0)


def _logarithm(entropy: Tensor) -> Tensor:
    """ln max(H, 1e-8), float64."""
    wide = entropy.detach().double()
    if not bool((wide.isfinite() & (wide >= -ROUNDING)).all()):
        worst = wide[~(wide.isfinite() & (wide >= -ROUNDING))][0]
        raise InvalidData(
            where="column `entropy_old`",
            what=f"an entropy is {float(worst):g}; it must be a number ≥ 0.",
            remedy="Entropies of discrete actions are −Σ p log p, in nats; tokens without one must be masked.",
        )
    return wide.clamp_min(SMALLEST).log()
