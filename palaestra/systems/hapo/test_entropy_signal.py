"""The entropy signal:

1. It has the numbers of the definition, signed and as released.
2. It lies in [−1, 1], grows with entropy, and reaches both ends in its own batch.
3. A batch without tokens above or below the pivot, or with equal entropies, has a scale too.
4. Masked tokens change nothing.
5. Negative and not finite entropies are refused.
6. A rule changes temperatures by the signal, each row by its own rule, and strength 0 leaves them bit for bit.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palaestra.data.entropy_signal import factors
from palaestra.errors import InvalidData
from palaestra.systems.hapo.entropy_signal import EntropyScale, SignalTemperature, entropy_scale
from tests.parts.tables import close, quick

FIVE = torch.tensor([0.01, 0.1, 0.5, 1.0, 2.0])
Entropies = st.lists(st.floats(0, 5, width=16), min_size=1, max_size=20)


def signal(entropy: Tensor, *, quantile: float = 0.5) -> Tensor:
    return entropy_scale(entropy, quantile=quantile).signal(entropy)


def test_numbers() -> None:  # rule 1
    scale = entropy_scale(FIVE, quantile=0.5)
    assert close(scale.signal(FIVE), [-1, -0.4114, 0, 0.5, 1])
    assert close(scale.signal(FIVE, released_sign=True), [1, 0.4114, 0, 0.5, 1])
    rule = SignalTemperature(scale=scale, strength=0.05)
    assert close(rule.factor(FIVE), [0.95, 0.9794, 1, 1.025, 1.05])


def test_bounds_of_a_clip() -> None:  # rule 1
    h = signal(FIVE)
    assert close(0.2 * (1 - h.clamp(max=0)), [0.4, 0.2823, 0.2, 0.2, 0.2])
    assert close(0.2 * (1 + h.clamp(min=0)), [0.2, 0.2, 0.2, 0.3, 0.4])


@quick
@given(Entropies, st.floats(0, 1))
def test_order_and_range(entropies: list[float], quantile: float) -> None:  # rule 2
    entropy = torch.tensor(entropies)
    h = signal(entropy, quantile=quantile)
    assert bool((h.abs() <= 1).all())
    order = entropy.argsort()
    assert bool((h[order].diff() >= -1e-12).all())
    scale = entropy_scale(entropy, quantile=quantile)
    if bool((h > 0).any()):
        assert float(h.max()) == pytest.approx(1)
    if bool((h < 0).any()):
        assert float(h.min()) == pytest.approx(-1)
    assert float(scale.signal(torch.tensor([100.0]))) <= 1  # an entropy outside the batch's range is cut


def test_nothing_on_one_side() -> None:  # rule 3
    assert close(signal(torch.tensor([1.0, 2.0, 2.0]), quantile=1.0), [-1, 0, 0])
    assert close(signal(torch.tensor([1.0, 1.0, 2.0]), quantile=0.0), [0, 0, 1])
    assert entropy_scale(torch.tensor([1.0, 1.0, 2.0]), quantile=0.0).low == 1
    assert close(signal(torch.tensor([0.7, 0.7])), [0, 0])
    assert close(signal(torch.zeros(3)), [0, 0, 0])


def test_masked_tokens() -> None:  # rule 4
    counts = torch.tensor([True] * 5 + [False] * 2)
    wild = torch.cat([FIVE, torch.tensor([torch.nan, 50.0])])
    assert entropy_scale(wild, quantile=0.5, counts=counts) == entropy_scale(FIVE, quantile=0.5)


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf")])
def test_no_entropy(bad: float) -> None:  # rule 5
    with pytest.raises(InvalidData, match="must be a number ≥ 0"):
        entropy_scale(torch.tensor([1.0, bad]), quantile=0.5)
    with pytest.raises(InvalidData, match="must be a number ≥ 0"):
        entropy_scale(FIVE, quantile=0.5).signal(torch.tensor([bad]))
    with pytest.raises(InvalidData, match="no token counts"):
        entropy_scale(FIVE, quantile=0.5, counts=torch.zeros(5, dtype=torch.bool))


def test_rounding_is_no_fault() -> None:  # rule 5
    assert close(signal(torch.tensor([-1e-7, 1.0, 2.0])), [-1, 0, 1])


def test_factors() -> None:  # rule 6
    scale = entropy_scale(FIVE, quantile=0.5)
    hot, mild = SignalTemperature(scale=scale, strength=0.5), SignalTemperature(scale=scale, strength=0.1)
    assert close(factors([hot, None, mild], torch.tensor([2.0, 2.0, 2.0])), [1.5, 1.0, 1.1])
    none = SignalTemperature(scale=EntropyScale(pivot=0, deviation=1, high=1, low=1), strength=0.0)
    assert factors([none] * 5, FIVE).tolist() == [1.0] * 5
