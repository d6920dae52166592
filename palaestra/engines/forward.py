"""Forward passes over packed tokens: any transformers model through its attention interface, plain Llama directly."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from palaestra.engines.asked import Asked, asked_by, chooses_keys, own_logits, reads_both_directions, takes_positions
from palaestra.engines.attention import Attend, Batch, Packed, Row
from palaestra.engines.blocks import BLOCK, BlockStore, Shape
from palaestra.engines.llama import LlamaForward, is_plain_llama
from palaestra.engines.session import Statistics
from palaestra.errors import ContractError
from palaestra.models.own_head import language_part
from palaestra.models.pictures import embed
from palaestra.models.sizes import cache_shape


class Forward(Protocol):
    """The forward pass of one model."""

    def __call__(self, batch: Packed) -> Tensor:
        """Logits (rows, vocabulary) after each row's last token, in packing order."""

    def weights_changed(self) -> None:
        """Read the weights again."""

    def rest(self) -> None:
        """Free what the next pass can make again."""


ATTENTION = "palaestra_blocks"
# What the code of an architecture may raise where the engine gives it something that it does not know.
FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)
_attend: ContextVar[Attend] = ContextVar("palaestra_attend")


def forward_of(model: PreTrainedModel, *, length: int) -> Forward:
    """The fastest forward pass for this model.

    Args:
        length: the most positions of one sequence.

    Raises: ContractError, if the model's cached and uncached numbers differ: its attention or its state
        does not pass through transformers' attention interface.
    """
    if is_plain_llama(model):
        return LlamaForward(model, length=length)
    forward = TransformersForward(model)
    _verify(model, forward, length)
    return forward


def shape_of(model: PreTrainedModel) -> Shape:
    """The shape of the keys and values that the model's attention stores per token."""
    layers, heads, width, value_width = cache_shape(model.config)
    return Shape(layers=layers, heads=heads, width=width, value_width=value_width)


# ---- any model --------------------------------------------------------------------------------------------
class TransformersForward:
    """The forward pass of any causal LM that calls transformers' attention interface, with the engine's attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._gives_all = "logits_to_keep" not in inspect.signature(model.forward).parameters

    def __call__(self, batch: Packed) -> Tensor:
        given = {"input_ids": batch.ids[None]}
        if batch.inserted is not None:
            index, states = batch.inserted
            given = {"inputs_embeds": embed(self.model, batch.ids, (index,), states)[None]}
        with _our_attention(self.model, batch.attend):
            result = self.model(
                **given,
                position_ids=batch.positions[None] if batch.axes is None else batch.axes[:, None],
                use_cache=False,
                logits_to_keep=batch.padded_last(),
            )
        if self._gives_all:  # a few architectures ignore what they do not know
            return result.logits[0, batch.last]  # type: ignore[no-any-return]
        return result.logits[0, : len(batch.last)]  # type: ignore[no-any-return]

    def weights_changed(self) -> None:
        """Nothing to do: each pass calls the modules of the model."""

    def rest(self) -> None:
        """Nothing to do."""


@contextmanager
def _our_attention(model: PreTrainedModel, attend: Attend) -> Iterator[None]:
    """A context in which the model uses the engine's attention. It is restored afterwards, for training."""
    config: Any = language_part(model).config  # that of the vision tower does not change
    usual, training = config._attn_implementation, model.training
    token = _attend.set(attend)
    config._attn_implementation = ATTENTION
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
        config._attn_implementation = usual
        _attend.reset(token)


def _block_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query (1, heads, tokens, width) to (1, tokens, heads, width)."""
    if position_bias is not None:
        raise TypeError("its attention adds a bias of positions")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    packed = (x[0].transpose(0, 1) for x in (query, key, value))
    attend = _attend.get()
    out = attend(module.layer_idx, *packed, scaling=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return out[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _block_attention)


@torch.inference_mode()
def _verify(model: PreTrainedModel, forward: Forward, length: int) -> None:
    """Read a long and a short session in pieces, then one more id of each together. Compare with passes of the model.

    The long one has more than two blocks, so that blocks, windows and chunks of that size are seen.
    """
    if chooses_keys(model):
        raise _refused(model, "its layers choose the keys that they read by an index, which the engine does not store")
    try:
        asked = asked_by(model, language_part(model).config, length=length)
    except FAILURES as error:
        raise _refused(model, f"its forward pass failed: {error}") from error
    if asked.obstacle():
        raise _refused(model, asked.obstacle())
    try:
        difference = _difference(model, forward, length)
    except FAILURES as error:
        raise _refused(
            model, _cause(model, asked) or f"its forward pass, which gets no masks, failed: {error}"
        ) from error
    # Not a number is a model that has diverged: its requests fail, and say so.
    if difference > (1e-3 if model.dtype == torch.float32 else 0.5):
        cause = _cause(model, asked)
        numbers = f"its cached and its uncached log-probabilities differ by {difference:.3g}"
        raise _refused(model, f"{cause}, and {numbers}" if cause else numbers)


def _cause(model: PreTrainedModel, asked: Asked) -> str:
    """Why the model's cached numbers are others; empty, if that is not known."""
    if reads_both_directions(model):
        return "it reads both directions, so that a new id changes what is stored of the earlier ones"
    try:
        cause = asked.cause(cache_shape(model.config))
    except AttributeError:
        return "its configuration has no attention heads: it keeps a state of another kind"
    if cause:
        return cause
    try:
        return "" if takes_positions(model) else "it counts positions itself, and takes none"
    except FAILURES:
        return ""


def _difference(model: PreTrainedModel, forward: Forward, length: int) -> float:
    """The largest difference of cached and uncached log-probabilities."""
    size = model.config.get_text_config().vocab_size
    weight = next(model.parameters())
    store = BlockStore(
        shape=shape_of(model),
        limit=2**62,
        device=weight.device,
        dtype=weight.dtype,
        statistics=Statistics(),
        first_bytes=0,
    )
    sessions = [[(7 * i + 1) % size for i in range(min(count, length))] for count in (2 * BLOCK + 9, 6)]
    blocks = [[store.take() or 0 for _ in range(-(-len(ids) // BLOCK))] for ids in sessions]
    begin = [Row(held, 0, ids[: len(ids) // 2]) for held, ids in zip(blocks, sessions, strict=True)]
    middle = [Row(held, row.end, ids[row.end : -1]) for held, row, ids in zip(blocks, begin, sessions, strict=True)]
    end = [Row(held, len(ids) - 1, ids[-1:]) for held, ids in zip(blocks, sessions, strict=True)]
    differences = []
    for rows in (begin, middle, end):
        logits = forward(Batch(rows, store))
        expected = torch.cat([own_logits(model, ids[: row.end]) for row, ids in zip(rows, sessions, strict=True)])
        differences.append((logits.float().log_softmax(-1) - expected.float().log_softmax(-1)).abs().max())
    return float(torch.stack(differences).max())


def _refused(model: PreTrainedModel, why: str) -> ContractError:
    return ContractError(
        where=f"in-process engine, {type(model).__name__}",
        what=f"this architecture cannot be served: {why}.",
        remedy="Use a decoder whose every layer calls transformers' attention interface (Llama, Qwen, Gemma, …).",
    )
