"""What must hold of fast products: (1) results and first and second derivatives are those of `linear`, for every shape,
with biases and transposed weights; (2) other types are left to torch, and so is everything outside the block; (3) a
policy of a large model uses them in every pass: forward, backward, recomputed layers, and chunks of logits. (4) Packed
weights in bfloat16 give the bits of `linear`, and are a copy, which objects of one version share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from palaestra.models import products
from palaestra.models.products import PackedLinear, _Product, are_fast, fast_products, packs
from palaestra.policies import language_trainer
from tests.policies.test_packed_batches import samples
from tests.policies.test_recompute import policy

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of torch has no oneDNN"
)


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """oneDNN works on every processor; it is only faster on some."""
    monkeypatch.setattr(products, "usable", lambda: True)
    yield
    assert not are_fast()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the weights of all fast products."""
    found: list[tuple[int, ...]] = []
    plain = _Product.forward

    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        found.append(tuple(w.shape))
        return plain(ctx, x, w)

    monkeypatch.setattr(_Product, "forward", staticmethod(forward))
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (5,), (0, 5)], ids=str)
def test_1_numbers(shape: tuple[int, ...], bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw).requires_grad_()
    w = torch.randn(5, 4, generator=draw).t().requires_grad_()
    given = (x, w, torch.randn(4, generator=draw).requires_grad_()) if bias else (x, w)
    results = []
    for fast in (False, True):
        with fast_products(fast):
            out = F.linear(*given)
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), given)
        results.append([out, *first, *second])
    for plain, quick in zip(*results, strict=True):
        torch.testing.assert_close(quick, plain, atol=1e-3, rtol=1e-4)


def test_2_what_is_left_to_torch(calls: list[tuple[int, ...]]) -> None:
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    F.linear(x, w)
    with fast_products(False):
        F.linear(x, w)
    with fast_products():
        assert are_fast()
        F.linear(x.double(), w.double())
        F.linear(x.bfloat16(), w.bfloat16())
        assert calls == []
        F.linear(x, w)
    assert calls == [(4, 3)]


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["whole", "lora"])
def test_3_every_pass(
    lora: dict[str, Any] | None, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_trainer, "CHUNK_LOGITS", 3000)  # so that logits are cut, and computed again
    made = policy(recompute=True, packing=False, lora=lora)
    out = {}
    for large in (False, True):
        made.network._large = large
        made.module.zero_grad()
        columns = made.forward(samples(None), range(7), ("logprob", "entropy")).columns
        forward = len(calls)
        (columns["logprob"].sum() + columns["entropy"].sum()).backward()
        assert bool(calls) is large
        out[large] = [columns["logprob"], *(p.grad.clone() for p in made.module.parameters() if p.grad is not None)]
    assert len(calls) - forward > 2 * forward  # layers and logits again, and one or two products for each of them
    for plain, quick in zip(out[False], out[True], strict=True):
        torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 32), (64, 32), (300, 32), (2, 3, 32)], ids=str)
def test_4_packed_weights(shape: tuple[int, ...], bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(size, generator=draw).bfloat16() for size in (shape, (48, 32), (48,)))
    if not packs(w):
        pytest.skip("this processor has no products in bfloat16")
    assert not packs(w.float())
    added = b if bias else None
    packed, expected = PackedLinear(w, added), F.linear(x, w, added)
    w.zero_()
    assert torch.equal(packed(x), expected)


def test_4_other_builds_do_not_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(products, "_Packed", fails)
    assert not products.packs_bfloat16.__wrapped__()


def test_4_copies_are_shared() -> None:
    w = torch.ones(48, 32, dtype=torch.bfloat16)
    if not packs(w):
        pytest.skip("this processor has no products in bfloat16")
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    first, again, own = PackedLinear(w, version=0), PackedLinear(w, version=0), PackedLinear(w)
    assert first._packed is again._packed is not own._packed
    w.mul_(2)
    changed = PackedLinear(w, version=1)
    assert [float(each(x)[0, 0]) for each in (first, again, own, changed)] == [32, 32, 32, 64]
    del first, again, changed
    assert not products._packed
