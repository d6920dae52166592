"""TokenBatch: (1) coefficients are the means they name, on any batch; (2) masked tokens have none, rejected ones count,
and a batch that is all masked gives 0 with gradient and a warning; (3) cutting a batch changes nothing; (4) what is
missing or out of range is refused; (5) KL estimates.
"""

from __future__ import annotations

import statistics
import typing
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import aggregate, coefficients, kl_estimate
from palaestra.data import TokenBatch
from palaestra.errors import InvalidData, MissingColumn
from palaestra.registry.options import Aggregation
from tests.parts.batches import batches, filled, quick

MODES = typing.get_args(Aggregation)
LEVELS = {
    "token-mean": (),
    "sequence-mean": ("trajectory",),
    "step-mean": ("row",),
    "trajectory-step-mean": ("trajectory", "row"),
    "group-mean": ("group",),
    "agent-mean": ("agent",),
}


def nested_mean(batch: TokenBatch, values: torch.Tensor, tokens: list[int], levels: tuple[str, ...]) -> float:
    """Mean over the first level of means over the next, down to tokens."""
    if not levels:
        return statistics.fmean(values[tokens].tolist())
    units = getattr(batch, levels[0])
    parts = sorted({int(units[t]) for t in tokens})
    inner = [[t for t in tokens if int(units[t]) == part] for part in parts]
    return statistics.fmean(nested_mean(batch, values, part, levels[1:]) for part in inner)


@pytest.mark.parametrize("how", LEVELS)
@quick
@given(batch=batches())
def test_means(how: Any, batch: TokenBatch) -> None:  # rule 1
    kept = (batch["weight"] > 0).nonzero()[:, 0].tolist()
    if kept:
        found = float((coefficients(batch, how=how) * batch["advantage"]).sum())
        assert found == pytest.approx(nested_mean(batch, batch["advantage"], kept, LEVELS[how]))


@quick
@given(batches())
def test_sums(batch: TokenBatch) -> None:  # rule 1
    kept = batch["weight"] > 0
    n = max(len(set(batch.trajectory[kept].tolist())), 1)
    total = float(batch["advantage"][kept].sum())
    for how, constant, divisor in (
        ("sequence-sum", None, n),
        ("sequence-sum-norm", 7.0, 7),
        ("constant-length", 7.0, 7 * n),
    ):
        found = (coefficients(batch, how=how, constant=constant) * batch["advantage"]).sum()
        assert float(found) == pytest.approx(total / divisor, abs=1e-9)


@pytest.mark.parametrize("how", MODES)
def test_masked(how: Any) -> None:  # rule 2
    batch = filled([[2, 1], [3]], 0)
    half = batch.replace(weight=torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0, 1.0]).double())
    assert coefficients(half, how=how, constant=4.0)[[0, 3]].tolist() == [0.0, 0.0]
    nothing = batch.replace(weight=torch.zeros(6).double())
    loss = torch.ones(6, requires_grad=True)
    with pytest.warns(UserWarning, match="all 6 tokens are masked"):
        total = aggregate(loss, nothing, how=how, constant=4.0)
    total.backward()
    assert float(total.detach()) == 0.0 and loss.grad is not None and loss.grad.tolist() == [0.0] * 6


@pytest.mark.parametrize("how", MODES)
@quick
@given(batch=batches())
def test_rejected_tokens_count(how: Any, batch: TokenBatch) -> None:  # rule 2
    rejected = batch.replace(weight=batch["weight"] * (torch.arange(len(batch)) % 2), counts=batch["weight"])
    assert torch.equal(coefficients(rejected, how=how, constant=4.0), coefficients(batch, how=how, constant=4.0))
    plain = batch.replace(counts=batch["weight"])
    assert torch.equal(coefficients(plain, how=how, constant=4.0), coefficients(batch, how=how, constant=4.0))


def test_what_a_mask_does_to_the_mean() -> None:  # rule 2
    batch = filled([[2], [2]], 0).replace(weight=torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    loss = torch.ones(4).double()
    assert float(aggregate(loss, batch)) == 1.0, "selected: the mean of three"
    assert float(aggregate(loss, batch.replace(counts=torch.ones(4)))) == 0.75, "rejected: three of four"


@pytest.mark.parametrize("how", MODES)
@quick
@given(batch=batches(), cut=st.integers(1, 5))
def test_cut(how: Any, batch: TokenBatch, cut: int) -> None:  # rule 3
    share = coefficients(batch, how=how, constant=4.0)
    pieces = torch.arange(len(batch)).split(cut)
    sums = [(share[p] * batch.take(p)["weight"] * batch.take(p)["advantage"]).sum() for p in pieces]
    whole = float((share * batch["weight"] * batch["advantage"]).sum())
    assert float(torch.stack(sums).sum()) == pytest.approx(whole, abs=1e-9)
    if bool((batch["weight"] > 0).any()):
        assert float(aggregate(batch["advantage"], batch, how=how, constant=4.0)) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("constant", [None, 0.0, -3.0])
@pytest.mark.parametrize("how", ["sequence-sum-norm", "constant-length"])
def test_constant_must_be_positive(how: Any, constant: float | None) -> None:  # rule 4
    with pytest.raises(InvalidData, match="must be positive") as caught:
        coefficients(filled([[1], [1]], 0), how=how, constant=constant)
    assert "must not vary from batch to batch" in str(caught.value)


def test_missing() -> None:  # rule 4
    batch = filled([[1], [1]], 0)
    with pytest.raises(MissingColumn, match="`group`"):
        coefficients(batch.replace(group=None), how="group-mean")
    with pytest.raises(MissingColumn, match="no column `value`"):
        batch.replace(value=None)["value"]
    assert len(batch) == 2 and batch["value"] is batch["value"]


def test_take_keeps_what_is_no_tensor() -> None:
    batch = filled([[2, 1], [3]], 0).replace(logprob_reference=None)
    taken = batch.take(torch.tensor([4, 0]))
    assert "logprob_reference" not in taken and taken.scope == batch.scope
    assert taken["advantage"].tolist() == batch["advantage"][[4, 0]].tolist()


@quick
@given(batches())
def test_kl_estimates(batch: TokenBatch) -> None:  # rule 5
    reference = batch["logprob_reference"]
    assert reference is not None
    k1, k2, k3 = (kl_estimate(batch["logprob"], reference, how=how) for how in ("k1", "k2", "k3"))
    assert torch.allclose(k1, batch["logprob"] - reference) and torch.allclose(k2, k1.square() / 2)
    assert bool((k3 >= 0).all()) and torch.allclose(k3, torch.exp(-k1) + k1 - 1)


def test_kl_estimates_are_unbiased() -> None:  # rule 5
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.5, 0.3, 0.2]).log()
    exact = float((policy.exp() * (policy - reference)).sum())
    for how in ("k1", "k3"):
        assert float((policy.exp() * kl_estimate(policy, reference, how=how)).sum()) == pytest.approx(exact, abs=1e-6)
