"""Attention logits of a model: the largest of each head is measured, and bounded by shrinking the head's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from palaestra.errors import ContractError, InvalidData
from palaestra.models.attention import lengths

MEASURED = "palaestra_measured"  # transformers' sdpa attention, which also records the largest logits
LARGEST_BLOCK = 2**24  # logits that are in memory at once


class AttentionMeter:
    """Measures the attention logits of a module's language models, from its construction on.

        S_h = max over samples, queries i and keys j ≤ i of q_i · k_j · scaling        per layer and head h

    The maximum runs over all forward passes with gradient since the last `reset`. What the model computes stays the
    same bit for bit.

    Args:
        module: holds one or several transformers models whose layers project queries and keys by `q_proj` and `k_proj`.

    Raises: ContractError, if there is no such layer, or one whose logits its projections do not bound.
    """

    def __init__(self, module: nn.Module) -> None:
        self.layers: list[Any] = [layer for layer in module.modules() if hasattr(layer, "q_proj")]
        _refuse_others(module, self.layers)
        for model in module.modules():
            if isinstance(model, PreTrainedModel):
                model.config._attn_implementation = MEASURED
        self.reset()

    def reset(self) -> None:
        """Begin a new measurement."""
        for layer in self.layers:
            layer.largest_logit = torch.full((heads_of(layer)[0],), -torch.inf)

    def largest(self) -> list[Float[Tensor, " heads"]]:
        """S of each layer; −∞ where no pass was measured."""
        return [layer.largest_logit for layer in self.layers]


def heads_of(layer: Any) -> tuple[int, int]:
    """The number of query heads and of key heads."""
    return layer.q_proj.out_features // layer.head_dim, layer.k_proj.out_features // layer.head_dim


@torch.no_grad()
def bound_logits(layer: Any, largest: Float[Tensor, " heads"], *, tau: float) -> Float[Tensor, " heads"]:
    """Shrink the projections of heads whose largest logit is above `tau`.

        gamma = min(1, tau / S)        W_q, W_k ·= sqrt(gamma), per head; with shared keys W_q ·= gamma alone

    On the same inputs the largest logit of such a head is then tau. Biases shrink with their weights.

    Args:
        layer: an attention layer.
        largest: S of each query head.
        tau: > 0; infinity changes nothing.

    Returns: gamma (heads,), 1 for heads that did not change.
    Raises: InvalidData, if S is not a number or +∞.
    """
    if bool((largest.isnan() | (largest == torch.inf)).any()):
        raise InvalidData(
            where="optimizer: muon_clip",
            what="the largest attention logit of a head is not finite.",
            remedy="The weights have diverged before the clip could act: lower the learning rate or `tau`.",
        )
    gamma = torch.where(largest > tau, tau / largest, 1.0)
    queries, keys = heads_of(layer)
    shared = queries != keys
    for projection, factor in ((layer.q_proj, gamma if shared else gamma.sqrt()), (layer.k_proj, gamma.sqrt())):
        if (projection is layer.k_proj and shared) or bool((gamma == 1).all()):
            continue
        rows = factor.repeat_interleave(layer.head_dim).to(projection.weight)
        projection.weight.mul_(rows[:, None])
        if projection.bias is not None:
            projection.bias.mul_(rows)
    return gamma


# ---- measuring --------------------------------------------------------------------------------------------
def _measured_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function, which also records the largest logits. query is (samples, heads, tokens,
    width).
    """
    if torch.is_grad_enabled() and hasattr(module, "largest_logit"):
        with torch.no_grad():
            scaling = options.get("scaling")
            scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
            found = _largest(query, key, attention_mask, window=options.get("sliding_window")) * scaling
            module.largest_logit = torch.maximum(module.largest_logit, found.float().cpu())
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]


def _largest(query: Tensor, key: Tensor, mask: Tensor | None, *, window: int | None) -> Tensor:
    """The largest q_i · k_j of each head, over the pairs that the mask allows: (heads,)."""
    samples, heads, tokens, _ = query.shape
    place = torch.arange(tokens, device=query.device)
    seen = place[:, None] >= place  # (queries, keys)
    if window is not None:
        seen = seen & (place[:, None] - place < window)
    real_lengths = lengths.get()
    out = query.new_full((heads,), -torch.inf)
    step = max(1, LARGEST_BLOCK // (heads * tokens * tokens))
    for first in range(0, samples, step):
        few = slice(first, first + step)
        shared = key[few].repeat_interleave(heads // key.shape[1], 1)
        logits = query[few] @ shared.transpose(2, 3)
        allowed = seen[None, None]
        if real_lengths is not None:
            real = place < torch.tensor(list(real_lengths[few]), device=query.device)[:, None]
            allowed = allowed & real[:, None, :, None]
        if mask is not None:
            own = mask[few] if len(mask) == samples else mask
            allowed = allowed & (own if own.dtype == torch.bool else own == 0)
        out = torch.maximum(out, logits.masked_fill(~allowed, -torch.inf).amax((0, 2, 3)))
    return out


ALL_ATTENTION_FUNCTIONS.register(MEASURED, _measured_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(MEASURED, sdpa_mask)


def _refuse_others(module: nn.Module, layers: Sequence[Any]) -> None:
    where = "attention meter"
    if not layers:
        raise ContractError(
            where=where,
            what="no layer has the projections `q_proj` and `k_proj`.",
            remedy="Use a decoder of the Llama family, or an optimizer that does not bound attention logits.",
        )
    for layer in layers:
        if not all(type(getattr(layer, name, None)) is nn.Linear for name in ("q_proj", "k_proj")):
            raise ContractError(
                where=where,
                what="a layer's queries or keys do not come from plain linear projections.",
                remedy="Merge adapters into the weights, or use an optimizer that does not bound attention logits.",
            )
        if hasattr(layer, "q_norm") or hasattr(layer, "k_norm"):
            raise ContractError(
                where=where,
                what="queries or keys are normalized after their projection, so shrinking it bounds no logit.",
                remedy="Such models need no clip: use an optimizer that does not bound attention logits.",
            )
    for model in module.modules():
        if isinstance(model, PreTrainedModel) and model.config._attn_implementation not in ("sdpa", MEASURED):
            raise ContractError(
                where=where,
                what=f"the model's attention is `{model.config._attn_implementation}`; only `sdpa` can be measured.",
                remedy="Load the model with sdpa attention.",
            )
