"""The type of weights: turns the setting `dtype` into weights of that type."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel


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
    for model in [part for part in module.modules() if isinstance(part, PreTrainedModel)]:
        for parameter in model.parameters():  # one at a time, so that memory never holds two copies of all
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16


def is_low(tensor: torch.Tensor) -> bool:
    """Whether small steps are lost in the tensor's type."""
    return tensor.dtype in (torch.bfloat16, torch.float16)
