"""The forward pass of a plain Llama over packed tokens, computed with the model's weights in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from palaestra.engines.attention import Packed
from palaestra.models.adapters import low_rank
from palaestra.models.joined import joined
from palaestra.models.products import PackedLinear, is_large, packs


def is_plain_llama(model: PreTrainedModel) -> TypeGuard[LlamaForCausalLM]:
    """Whether the module is Llama as transformers wrote it, with plain adapters at most: no hooks, and no rotation that
    depends on the length."""
    if type(model) is not LlamaForCausalLM or model.model.rotary_emb.rope_type not in ("default", "linear", "llama3"):
        return False
    ours = ("torch.nn.modules.", "transformers.models.llama.", "transformers.activations")
    return all(
        (type(part).__module__.startswith(ours) or low_rank(part) is not None) and not _hooked(part)
        for part in model.modules()
    )


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


class LlamaForward:
    """Computes a Llama on packed tokens with the model's weights, in a fifth of the calls that its modules make.

    For small models, and for few tokens, calls take most of the time of a step. Layers that read the same input are
    computed by one product, if their weights lie side by side.
    """

    def __init__(self, model: LlamaForCausalLM, *, length: int) -> None:
        self.model = model
        packed = is_large(model)
        self._layers = [_Layer(layer, packed=packed) for layer in model.model.layers]
        self._head = _Product([model.lm_head], packed=packed)
        weight = model.model.embed_tokens.weight
        positions = torch.arange(length, device=weight.device)[None]
        with torch.no_grad():
            cosine, sine = model.model.rotary_emb(weight[:1], positions)
        self.cosine, sine = cosine[0, :, None], sine[0, :, None]  # (length, 1, head width)
        low, high = sine.chunk(2, -1)
        self.sine = torch.cat((-low, high), -1)

    def __call__(self, batch: Packed) -> Tensor:
        """Logits (rows, vocabulary) after each row's last token, in packing order."""
        decoder = self.model.model
        cosine, sine = self.cosine[batch.positions], self.sine[batch.positions]
        hidden = F.embedding(batch.ids, decoder.embed_tokens.weight)
        for number, layer in enumerate(self._layers):
            hidden = layer(number, hidden, cosine, sine, batch)
        last = _normalized(hidden[batch.padded_last()], decoder.norm)
        return self._head(last)[: len(batch.last)]

    def weights_changed(self) -> None:
        """Read the weights again."""
        for product in self._products():
            product.weights_changed()

    def rest(self) -> None:
        """Free the copies of weights. The next pass makes them again."""
        for product in self._products():
            product.rest()

    def _products(self) -> list[_Product]:
        return [*(product for layer in self._layers for product in layer.products), self._head]


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any, *, packed: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        self._width, self._scaling, self._act = attention.head_dim, attention.scaling, mlp.act_fn
        self._attend = _Product([attention.q_proj, attention.k_proj, attention.v_proj], packed=packed)
        self._mix = _Product([attention.o_proj], packed=packed)
        self._expand = _Product([mlp.gate_proj, mlp.up_proj], packed=packed)
        self._contract = _Product([mlp.down_proj], packed=packed)
        self._rotated = sum(self._attend.sizes[:2]) // self._width  # heads of queries and keys
        self._queries = self._attend.sizes[0] // self._width

    def __call__(self, number: int, hidden: Tensor, cosine: Tensor, sine: Tensor, batch: Packed) -> Tensor:
        """The layer's output (tokens, width) for its input; `number` is its place among the layers."""
        first, second = self._norms
        heads = self._attend(_normalized(hidden, first)).view(len(hidden), -1, self._width)
        both, value = heads[:, : self._rotated], heads[:, self._rotated :]
        both = _rotate(both, cosine, sine)
        query, key = both[:, : self._queries], both[:, self._queries :]
        mixed = batch.attend(number, query, key, value, scaling=self._scaling)
        hidden = hidden + self._mix(mixed.flatten(1))
        gate, up = self._expand(_normalized(hidden, second)).chunk(2, -1)
        return hidden + self._contract(self._act(gate).mul_(up))

    @property
    def products(self) -> list[_Product]:
        """All that multiplies by weights."""
        return [self._attend, self._mix, self._expand, self._contract]


class _Product:
    """Linear layers that read the same input, some of them with low-rank additions.

    It is one product, if their weights lie side by side (`join_weights`).

    Args:
        packed: whether to keep a copy of the weights as the processor multiplies them, where that is faster.

    Attributes:
        sizes: the width of each layer's output.
    """

    def __init__(self, layers: Sequence[nn.Module], *, packed: bool) -> None:
        found = [low_rank(layer) for layer in layers]
        plain: list[Any] = [layer if one is None else one[0] for layer, one in zip(layers, found, strict=True)]
        self._plain, self._additions = plain, [None if one is None else one[1] for one in found]
        self.sizes = [len(layer.weight) for layer in plain]
        self._packed = packed
        self._multiply: Callable[[Tensor], Tensor] | None = None
        self.weights_changed()

    def weights_changed(self) -> None:
        """Read the weights again. The additions are copied in the type of the layers."""
        self.rest()
        with torch.inference_mode(False), torch.no_grad():
            weights = [layer.weight.detach() for layer in self._plain]
            given = [one for one in self._additions if one is not None]
            self._a = self._b = None
            if given:
                ranks = [0 if one is None else len(one.a.weight) for one in self._additions]
                self._a = torch.cat([one.a.weight for one in given]).to(weights[0].dtype)  # (all ranks, in)
                self._b = weights[0].new_zeros(sum(ranks), sum(self.sizes))
                row = column = 0
                for one, rank, size in zip(self._additions, ranks, self.sizes, strict=True):
                    if one is not None:
                        self._b[row : row + rank, column : column + size] = one.b.weight.t() * one.scaling
                    row, column = row + rank, column + size

    def rest(self) -> None:
        """Free the copy of the weights. The next product makes it again."""
        self._multiply = None

    def _prepared(self) -> Callable[[Tensor], Tensor]:
        """The product with the weights as they are now, without the additions."""
        with torch.inference_mode(False), torch.no_grad():
            weights = [layer.weight.detach() for layer in self._plain]
            whole = joined(weights)
            biases = [layer.bias for layer in self._plain]
            bias = None if biases[0] is None else torch.cat(biases)
            if whole is None:
                return partial(_side_by_side, weights=weights, bias=bias)
            if self._packed and packs(whole):
                # Weights that are not trained are packed once, for all policies that add to them.
                trained = any(layer.weight.requires_grad for layer in self._plain)
                version = None if trained else tuple(weight._version for weight in weights)
                return PackedLinear(whole, bias, version=version)
            return partial(F.linear, weight=whole, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """x (tokens, in) ↦ the outputs of all layers, side by side."""
        if self._multiply is None:
            self._multiply = self._prepared()
        result = self._multiply(x)
        if self._a is None or self._b is None:
            return result
        return result.addmm_(F.linear(x, self._a), self._b)


def _side_by_side(x: Tensor, *, weights: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    result = torch.cat([F.linear(x, weight) for weight in weights], -1)
    return result if bias is None else result.add_(bias)


def _normalized(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: x · cos + (x₂, x₁) · (−sin, sin) for halves x₁, x₂ of (tokens, heads, width)."""
    low, high = x.chunk(2, -1)
    return (x * cosine).addcmul_(torch.cat((high, low), -1), sine)
