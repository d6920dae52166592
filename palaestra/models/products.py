"""Products of linear layers, on processors where torch has a faster kernel than the one that it takes.

Float32: torch multiplies by MKL. oneDNN, which torch contains too, is about twice as fast on AMD processors with
AVX-512 (190 against 90 GFLOPS on a core of Zen 5). The numbers differ by rounding alone.

Bfloat16: torch multiplies by oneDNN, which lays out the weights anew for each product. For few rows this takes as long
as the product. `PackedLinear` keeps the weights in that layout. The numbers are the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LARGE = 10_000_000  # parameters; smaller models spend their time on calls, not on products
PLAIN_SUM: tuple[Any, ...] = ("none", [], "")  # no function of the product
PACKED_ROWS = 64  # rows of a product for which oneDNN chooses the layout
PLAIN = (Tensor, nn.Parameter)

_on: ContextVar[bool] = ContextVar("fast_products", default=False)


def is_large(model: nn.Module) -> bool:
    """Whether a model spends most of its time on products of matrices, and not on calls."""
    return sum(p.numel() for p in model.parameters()) >= LARGE


@functools.cache
def usable() -> bool:
    """Whether this processor is one of AMD with AVX-512, and this build of torch has oneDNN."""
    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    try:
        torch.ops.mkldnn._linear_pointwise  # noqa: B018
    except AttributeError:
        return False
    known = torch.backends.mkldnn.is_available()
    return amd and known and torch.backends.cpu.get_cpu_capability() == "AVX512"


class PackedLinear:
    """The function x (…, in) ↦ x Wᵀ + b (…, out), with a copy of the weights W as the processor multiplies them.

    Later changes of W do not reach it.

    Args:
        weight: W (out, in), of a type and on a device that `packs`.
        bias: b (out,); None: there is none.
        version: another one whenever the numbers of W are others. Objects with one W in one version share a copy. None:
            they do not.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, version: Hashable = None) -> None:
        place = (weight.data_ptr(), tuple(weight.shape), version)
        packed = None if version is None else _packed.get(place)
        if packed is None:
            packed = _Packed(weight)
            if version is not None:
                _packed[place] = packed
        self._packed, self._bias = packed, bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed.copy, self._bias, *PLAIN_SUM)  # type: ignore[no-any-return]


def packs(weight: Tensor) -> bool:
    """Whether products are faster with a `PackedLinear`: in bfloat16, on a processor that multiplies it."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and packs_bfloat16()


@functools.cache
def packs_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16, and products of packed weights work in this build of torch."""
    x, w = (torch.linspace(-1, 1, rows * 32).reshape(rows, 32).bfloat16() for rows in (3, 48))
    try:
        known = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return known and torch.equal(PackedLinear(w)(x), F.linear(x, w))  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError):
        return False


class _Packed:
    """Weights in the layout of oneDNN. It keeps the weights, so that no others come to stand at their place."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach()
        self.copy = torch.ops.mkldnn._reorder_linear_weight(self.weight, PACKED_ROWS)


_packed: WeakValueDictionary[tuple[Hashable, ...], _Packed] = WeakValueDictionary()


@contextmanager
def fast_products(wanted: bool = True) -> Iterator[None]:
    """Inside this block, linear layers take the faster kernel, if it is `wanted` and `usable`."""
    if not wanted or _on.get() or not usable():
        yield
        return
    token = _on.set(True)
    try:
        with _Linear():
            yield
    finally:
        _on.reset(token)


def are_fast() -> bool:
    """Whether the code runs inside a block of `fast_products`."""
    return _on.get()


class _Linear(TorchFunctionMode):
    """Replaces `linear` of torch for float32 on the CPU."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and not kwargs and all(_fits(tensor) for tensor in args[:2]) and args[0].numel():
            product = _Product.apply(*args[:2])
            return product if len(args) < 3 or args[2] is None else product + args[2]
        return function(*args, **(kwargs or {}))


def _fits(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


class _Product(torch.autograd.Function):
    """x (…, k), w (n, k) ↦ x wᵀ (…, n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.ops.mkldnn._linear_pointwise(x, w, None, *PLAIN_SUM)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        (g,) = gradients
        of_x = _Product.apply(g, w.t()) if ctx.needs_input_grad[0] else None
        of_w = None
        if ctx.needs_input_grad[1]:
            of_w = _Product.apply(g.reshape(-1, g.shape[-1]).t(), x.reshape(-1, x.shape[-1]).t())
        return of_x, of_w
