"""The type of weights: turns the setting `dtype` into weights of that type."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import transformers
from torch import nn

AUTO = "auto"


def chosen_dtype(name: str, device: str) -> str:
    """The type that the setting `dtype` means on a device.

    `auto` is bfloat16 where products in it are faster than in float32, and float32 elsewhere.

    Args:
        name: float32, float64, bfloat16 or auto.
        device: as in `device`, such as cpu or cuda:1.
    """
    if name != AUTO:
        return name
    if device.startswith("cuda"):
        fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device == "cpu" and _multiplies_bfloat16()
    return "bfloat16" if fast else "float32"


@cache
def _multiplies_bfloat16() -> bool:
    """Whether this processor multiplies faster in bfloat16 than in float32: one with AMX, or one of AMD.

    Intel processors with `avx512_bf16` but without AMX are slower in it: 160 against 260 GFLOPS on two cores.
    """
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    flags = set(known.partition("flags")[2].partition("\n")[0].split())
    return "amx_bf16" in flags or ("AuthenticAMD" in known and "avx512_bf16" in flags)


def set_dtype(module: nn.Module, name: str) -> None:
    """Give the weights of a module a type, in place.

    With `bfloat16`, only models of transformers change. Value heads, critics and the additions of adapters stay as they
    are, since small steps would be lost in their sums, and buffers too, since positions need more digits.

    Args:
        name: float32, float64 or bfloat16.
    """
    if name != "bfloat16":
        module.to(dtype=getattr(torch, name))
        return
    for model in [part for part in module.modules() if isinstance(part, transformers.PreTrainedModel)]:
        for parameter in model.parameters():  # one at a time, so that memory never holds two copies of all
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16


def is_low(tensor: torch.Tensor) -> bool:
    """Whether small steps are lost in the tensor's type."""
    return tensor.dtype in (torch.bfloat16, torch.float16)
