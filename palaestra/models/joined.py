"""Weights of layers that read the same input, as views of one tensor, so that one product computes these layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transformers
from torch import Tensor, nn

from palaestra.models.products import is_large

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def join_weights(module: nn.Module) -> None:
    """Let layers of a large Llama with the same input have their weights side by side in memory.

    No number, name or file of the model changes. Call it after the last change of type or device, and before copies
    share the weights.
    """
    for model in module.modules():
        if isinstance(model, transformers.LlamaForCausalLM) and is_large(model):
            for part in model.modules():
                for names in TOGETHER:
                    layers = [getattr(part, name, None) for name in names]
                    if all(type(layer) is nn.Linear for layer in layers):
                        _join([layer.weight for layer in layers if layer is not None])


def joined(weights: Sequence[Tensor]) -> Tensor | None:
    """One tensor whose rows are those of all weights, without a copy; None, if they do not lie side by side."""
    first, end = weights[0], weights[0].data_ptr()
    for weight in weights:
        near = weight.is_contiguous() and weight.data_ptr() == end
        if not near or weight.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        end += weight.numel() * weight.element_size()
    rows = sum(len(weight) for weight in weights)
    return first.detach().as_strided((rows, first.shape[1]), first.stride())


@torch.no_grad()
def _join(weights: Sequence[nn.Parameter]) -> None:
    whole = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, whole.split([len(weight) for weight in weights]), strict=True):
        weight.data = part
