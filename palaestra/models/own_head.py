"""The output layer of a causal language model, with all that its architecture does to the logits.

Some architectures scale, divide or cap their logits in `forward`, after the output embeddings (Cohere, Granite, Gemma).
`own_logits` runs that code on given hidden states.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class _Output:
    """The output of a base model that has hidden states alone. All other values are None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor | None:
        return self.last_hidden_state if place == 0 else None


class _Given(nn.Module):
    """Stands in for the base model: it returns given hidden states. So does each of its parts, such as a decoder."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def __getattr__(self, name: str) -> Any:
        return self

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self._hidden)


def base_of(model: Any) -> nn.Module:
    """The model without its output layer."""
    base: Any = model.base_model
    if base is model:  # a few classes name another attribute as their base
        base = model.model
    return base  # type: ignore[no-any-return]


def language_part(model: Any) -> nn.Module:
    """The part that reads embeddings: without the output layer and, of a vision–language model, without its tower."""
    part = model.get_decoder()
    return base_of(model) if part is model.get_output_embeddings() else part  # ModernBERT calls that one `decoder`


def own_logits(model: Any, hidden: Tensor) -> Tensor:
    """The logits (tokens, vocabulary) that the model's own `forward` gives for last hidden states (tokens, width).

    The model does not change: `forward` runs on a shallow copy, whose base model returns `hidden`.
    """
    shell, base = copy.copy(model), base_of(model)
    shell._modules = {name: _Given(hidden[None]) if part is base else part for name, part in model._modules.items()}
    return type(model).forward(shell, inputs_embeds=hidden[None], use_cache=False).logits[0]  # type: ignore[no-any-return]


def is_plain(model: Any) -> bool:
    """Whether the logits are those of the output embeddings, bit for bit, so that these can be called directly."""
    head = model.get_output_embeddings()
    weight = next(head.parameters())
    draw = torch.Generator().manual_seed(0)
    hidden = 10 * torch.randn(2, model.config.get_text_config().hidden_size, generator=draw)
    with torch.no_grad():
        hidden = hidden.to(weight.device, weight.dtype)
        return torch.equal(own_logits(model, hidden), head(hidden))
