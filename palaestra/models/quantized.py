"""Linear layers whose weights are held in 4 or 8 bits, for models that train low-rank additions alone (QLoRA).

    layer(x) = W x + b          W (out, in): computed from its codes and their scales, in the type of x

bitsandbytes quantizes the weights while transformers loads them. Its own layers compute the codes differently with and
without a gradient: in 4 bits some processors round to bfloat16, and in 8 bits the inputs are quantized too. Engine and
trainer would differ. So `hold` puts the layers of this file in their place, which take over the codes.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from palaestra.errors import CheckpointError, missing_extra
from palaestra.models.products import are_fast, fast_products

BLOCK = 64  # weights with one scale, in 4 bits
BYTES = {"nf4": 0.5 + 4 / BLOCK, "fp4": 0.5 + 4 / BLOCK, "int8": 1.0}  # of a weight; with the scales of 4 bits
WHOLE = ("fp8", "mxfp8", "mxfp4")  # kinds of folders whose weights transformers turns into whole ones while it loads
BITSANDBYTES = "bitsandbytes"
NEEDED_FOR = "a model with quantized weights"
DIRECT = (torch.float32, torch.bfloat16, torch.float16)  # types in which bitsandbytes gives weights of 4 bits


# ---- packages and configurations --------------------------------------------------------------------------
@functools.cache
def package() -> Any:
    """The package bitsandbytes. Raises: MissingExtra, if it or accelerate, by which it is loaded, is not installed."""
    _need_accelerate()
    try:
        with without_notices():
            return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise missing_extra("bitsandbytes", extra="quantize", needed_for=NEEDED_FOR) from error


def _need_accelerate() -> None:
    try:
        importlib.import_module("accelerate")  # transformers loads quantized weights with it
    except ImportError as error:
        raise missing_extra("accelerate", extra="quantize", needed_for=NEEDED_FOR) from error


@contextmanager
def without_notices() -> Iterator[None]:
    """Hide what bitsandbytes logs where it is imported: that a kernel, which is not used here, cannot be downloaded."""
    log = logging.getLogger("bitsandbytes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def kind_of_folder(config: Any) -> str | None:
    """The kind in which a folder holds weights, by its configuration: nf4, fp4 or int8, or the name of another kind.

    None: the weights are whole.
    """
    said = _said(config)
    if said is None:
        return None
    if said.get("load_in_8bit") or said.get("load_in_4bit") or said.get("quant_method") == BITSANDBYTES:
        return "int8" if said.get("load_in_8bit") else str(said.get("bnb_4bit_quant_type", "fp4"))
    return str(said.get("quant_method"))


def _said(config: Any) -> dict[str, Any] | None:
    """The quantization that a configuration of transformers names."""
    for one in (config, config.get_text_config(decoder=True)):
        said = vars(one).get("quantization_config")
        if said is not None:
            return said if isinstance(said, dict) else said.to_dict()
    return None


def held_kind(config: Any, wanted: str | None) -> str | None:
    """The kind in which a model holds its weights once it is loaded: nf4, fp4 or int8; None: they are whole.

    Args:
        config: of the folder. wanted: the option `quantize`.
    """
    kind = wanted or kind_of_folder(config)
    return kind if kind in BYTES else None


def loading_options(config: Any, wanted: str | None, *, device: Any, where: str) -> dict[str, Any]:
    """What `from_pretrained` needs to load a folder with quantized weights, or to quantize them. {} for whole ones.

    Args:
        config: of the folder. wanted: nf4 or int8, or None to load the weights as they are.
        device: where the weights are quantized and stay.

    Raises: CheckpointError, if weights of this kind cannot be used, or if they are quantized already; MissingExtra.
    """
    there = kind_of_folder(config)
    if there is None and wanted is None:
        return {}
    if there is not None and wanted is not None:
        raise CheckpointError(
            where=where,
            what=f"its weights are quantized already (`{there}`), so they cannot be quantized to `{wanted}`.",
            remedy="Leave `quantize` out, or give the folder of the model with whole weights.",
        )
    if there is not None and there not in (*BYTES, *WHOLE):
        raise CheckpointError(
            where=where,
            what=f"its weights are quantized by `{there}`, a kind that Palaestra cannot compute with.",
            options=[*BYTES, *WHOLE],
            remedy="Give the folder of the model with whole weights, and set `quantize: nf4` to hold them in 4 bits.",
        )
    if there in WHOLE:
        _need_accelerate()
        for one in (config, config.get_text_config(decoder=True)):
            if "quantization_config" in vars(one):
                one.quantization_config = {**(_said(one) or {}), "dequantize": True}
        return {"config": config, "device_map": {"": device}}
    package()
    if wanted is None:
        return {"device_map": {"": device}}
    eight = wanted == "int8"
    kinds: dict[str, Any] = {"load_in_8bit": True} if eight else {"load_in_4bit": True, "bnb_4bit_quant_type": wanted}
    return {"quantization_config": transformers.BitsAndBytesConfig(**kinds), "device_map": {"": device}}


# ---- layers -----------------------------------------------------------------------------------------------
class QuantizedLinear(nn.Linear):
    """A linear layer that holds codes and scales in place of its weights. None of them is trained.

    Args:
        codes: of 4 bits, two in a byte (uint8), or int8 (out, in). They are the parameter `weight`.
        scales: float32; one for each block of weights, or in 8 bits for each row (out,).
        bias: (out,), or None. inputs, outputs: the widths of the layer.
        kind: nf4, fp4 or int8. block: number of weights in a block, in 4 bits.
    """

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        bias: Tensor | None,
        *,
        inputs: int,
        outputs: int,
        kind: str,
        block: int = 0,
    ) -> None:
        super().__init__(inputs, outputs, bias=False, device="meta")
        self.weight = nn.Parameter(codes, requires_grad=False)
        kept = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", kept)
        self.register_buffer("scales", scales)
        self.kind, self.block = kind, block

    def values(self, dtype: torch.dtype) -> Tensor:
        """The weights (out, in) in this type: level(code) · scale of the block, or code / 127 · scale of the row."""
        scales: Any = self.scales
        if self.kind == "int8":
            return self.weight.float().mul_(scales.float()[:, None] / 127).to(dtype)
        functional, sizes = package().functional, (self.out_features, self.in_features)
        state = functional.QuantState(
            absmax=scales.float(),
            shape=torch.Size(sizes),
            blocksize=self.block,
            quant_type=self.kind,
            dtype=dtype if dtype in DIRECT else torch.float32,
        )
        return functional.dequantize_4bit(self.weight, state).to(dtype).reshape(sizes)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) ↦ W x + b (…, out), in the type of x."""
        product: Tensor = _Product.apply(x, self)
        return product if self.bias is None else product + self.bias

    def described(self) -> dict[str, Any]:
        """The kind and sizes of the layer, as JSON values, from which `empty_layer` makes one like it."""
        scales: Any = self.scales
        sizes = {"inputs": self.in_features, "outputs": self.out_features, "kind": self.kind, "block": self.block}
        return {"codes": list(self.weight.shape), "scales": len(scales), "bias": self.bias is not None, "sizes": sizes}

    def dequantized(self, dtype: torch.dtype) -> nn.Linear:
        """A plain layer on the CPU with the same weights in this type."""
        plain = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter(self.values(dtype).cpu(), requires_grad=False)
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias.detach().cpu(), requires_grad=False)
        return plain


def empty_layer(said: Mapping[str, Any], dtype: torch.dtype) -> QuantizedLinear:
    """A layer like the one that has `described` itself so, with zeros. Its bias has this type."""
    sizes = said["sizes"]
    codes = torch.zeros(said["codes"], dtype=torch.int8 if sizes["kind"] == "int8" else torch.uint8)
    bias = torch.zeros(sizes["outputs"], dtype=dtype) if said["bias"] else None
    return QuantizedLinear(codes, torch.zeros(said["scales"]), bias, **sizes)


class _Product(torch.autograd.Function):
    """x (…, in) ↦ x Wᵀ (…, out). The backward pass computes W again, so that only codes are kept between the passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer, ctx.fast = layer, are_fast()
        return F.linear(x, layer.values(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        with fast_products(ctx.fast):
            return F.linear(g, ctx.layer.values(g.dtype).t()), None


# ---- models -----------------------------------------------------------------------------------------------
def hold(model: transformers.PreTrainedModel, *, where: str) -> None:
    """Put layers of this file in the place of those of bitsandbytes. They take over the codes, without a copy.

    Afterwards the model is an ordinary one for transformers and peft. A model with whole weights does not change.

    Raises: CheckpointError, for layers that cannot be taken over.
    """
    quantizer: Any = vars(model).get("hf_quantizer")
    if quantizer is None:
        return
    bitsandbytes = package().nn
    for name, part in list(model.named_modules()):
        if not isinstance(part, bitsandbytes.Linear4bit | bitsandbytes.Linear8bitLt):
            continue
        if issubclass(part.source_cls, transformers.Conv1D):
            raise CheckpointError(
                where=where,
                what=f"its layers, such as {name}, are of the class Conv1D, which cannot be held in 4 or 8 bits.",
                remedy="Leave `quantize` out, or take a model with linear layers.",
            )
        four = isinstance(part, bitsandbytes.Linear4bit)
        model.set_submodule(name, _four_bits(part) if four else _eight_bits(part, f"{where}, {name}"))
    quantizer.remove_quantization_config(model)
    for inner in [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]:
        vars(inner.config).pop("_is_quantized", None)
        for flag in ("is_loaded_in_4bit", "is_loaded_in_8bit"):
            vars(inner).pop(flag, None)


def _four_bits(part: Any) -> QuantizedLinear:
    state = part.weight.quant_state
    scales = state.absmax
    if state.nested:  # the scales are quantized, too
        scales = package().functional.dequantize_blockwise(scales, state.state2) + state.offset
    codes = part.weight.data.contiguous().view(torch.uint8)
    sizes = {"inputs": part.in_features, "outputs": part.out_features, "kind": state.quant_type}
    return QuantizedLinear(_plain(codes), _plain(scales).float(), part.bias, block=state.blocksize, **sizes)


def _eight_bits(part: Any, where: str) -> QuantizedLinear:
    codes, scales = part.weight.data, part.weight.SCB
    if codes.dtype != torch.int8 or scales is None:
        raise CheckpointError(where=where, what=f"it has weights of the type {codes.dtype}, and not int8.")
    sizes = {"inputs": part.in_features, "outputs": part.out_features, "kind": "int8"}
    return QuantizedLinear(_plain(codes), _plain(scales).float().flatten(), part.bias, **sizes)


def _plain(tensor: Tensor) -> Tensor:
    """The same numbers as a tensor of torch's own class."""
    return tensor.detach().as_subclass(Tensor)


def is_quantized(model: nn.Module) -> bool:
    """Whether some layers of a model hold codes in place of weights."""
    return any(isinstance(part, QuantizedLinear) for part in model.modules())


def hidden_weights(module: nn.Module) -> int:
    """The number of weights of a module minus that of its parameters: a byte may hold the codes of two weights."""
    layers = [part for part in module.modules() if isinstance(part, QuantizedLinear)]
    return sum(part.in_features * part.out_features - part.weight.numel() for part in layers)


def dequantized(module: Any, dtype: torch.dtype) -> Any:
    """A copy whose layers hold weights of this type, on the CPU, where there is more memory. The module stays as it is.

    A module without quantized layers is copied where it is.
    """
    layers = [part for part in module.modules() if isinstance(part, QuantizedLinear)]
    plain: Mapping[int, nn.Module] = {id(part): part.dequantized(dtype) for part in layers}
    copied = copy.deepcopy(module, dict(plain))
    return copied.cpu() if layers else copied
