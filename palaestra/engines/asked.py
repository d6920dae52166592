"""What a model asks of attention, seen in one short pass of its own.

That is: which layers call transformers' interface, in which shapes they store keys and values, and what masks hide.

The engine builds no masks of transformers. It hides what is later and what is outside a window that a layer names, so a
mask that hides something else would be left out without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from palaestra.models.sizes import CacheShape

LOOK = "palaestra_look"
IDS = (1, 2, 3, 4, 5, 6)
APART = 1e-3  # nats; more than rounding
ROUNDING = 1e-5  # nats


class Call(NamedTuple):
    """One layer's call of attention. `hides`: what its mask hides that its window does not."""

    layer: int
    heads: int
    key_width: int
    value_width: int
    hides: str


@dataclass(slots=True)
class Asked:
    """The calls of one pass.

    Attributes:
        length: the most positions of one sequence, up to which masks are read.
    """

    length: int
    calls: list[Call] = field(default_factory=list)
    _masks: list[tuple[Tensor, Callable[..., Any]]] = field(default_factory=list)

    def obstacle(self) -> str:
        """Why the engine would give other numbers at some length; empty, if nothing is known against it."""
        return next((f"the mask of its layer {call.layer} hides {call.hides}" for call in self.calls if call.hides), "")

    def cause(self, shape: CacheShape) -> str:
        """Why the engine's numbers are others than the model's, as far as the calls say it.

        Args:
            shape: that follows from the configuration.
        """
        count = len({call.layer for call in self.calls})
        shapes = {call[1:4] for call in self.calls}
        if not count:
            return "no layer calls transformers' attention interface"
        if len(shapes) > 1:
            return "its layers store keys or values of different shapes"
        if count < shape.layers:
            return f"{shape.layers - count} of its {shape.layers} layers do not call transformers' attention interface"
        if shapes != {shape[1:]}:
            return "its layers store keys and values of another shape than its configuration says"
        return ""

    def note_mask(self, mask: Tensor, visible: Callable[..., Any]) -> Tensor:
        """Remember what a mask is made of."""
        self._masks.append((mask, visible))
        return mask

    def hidden(self, mask: Tensor | None, window: int | None) -> str:
        """What this mask hides from the last position that its window does not hide."""
        visible = next((function for known, function in self._masks if known is mask), None)
        if visible is None:
            return ""
        zero, last = torch.zeros((), dtype=torch.int64), self.length - 1
        places = torch.arange(self.length)
        try:
            seen = torch.as_tensor(visible(zero, zero, torch.tensor(last), places)).expand(self.length)
        except (IndexError, RuntimeError, TypeError, ValueError):  # it reads tensors of this pass's size
            return ""
        told = places > last - (self.length if window is None else window)
        if not bool((told & ~seen).any()):
            return ""
        nearest = last - int(places[told & ~seen].max())
        return f"keys from a distance of {nearest}, and the layer names no such window"


_asked: ContextVar[Asked] = ContextVar("palaestra_asked")


@torch.inference_mode()
def asked_by(model: PreTrainedModel, config: Any, *, length: int) -> Asked:
    """What the model asks of attention in a pass of its own.

    Args:
        config: of the part of the model that reads text. It is as before afterwards.
        length: the most positions of one sequence.

    Raises: whatever the model's code raises.
    """
    found = Asked(length)
    token, usual = _asked.set(found), config._attn_implementation
    config._attn_implementation = LOOK
    try:
        own_logits(model, IDS)
    finally:
        config._attn_implementation = usual
        _asked.reset(token)
    return found


def own_logits(
    model: PreTrainedModel, ids: Sequence[int], *, keep: int = 1, positions: Sequence[int] | None = None
) -> Tensor:
    """The logits (keep, vocabulary) after the last ids, by the model's own pass without a cache.

    Args:
        positions: of the ids; None: the model counts them.
    """
    device = next(model.parameters()).device
    size = model.config.get_text_config().vocab_size
    tokens = torch.tensor([[i % size for i in ids]], device=device)
    given = {} if positions is None else {"position_ids": torch.tensor([list(positions)], device=device)}
    with _evaluating(model):
        result = model(input_ids=tokens, use_cache=False, logits_to_keep=keep, **given)
    return result.logits[0, -keep:]  # type: ignore[no-any-return]


def takes_positions(model: PreTrainedModel) -> bool:
    """Whether the positions that a caller gives change what the model says."""
    usual = own_logits(model, IDS).float().log_softmax(-1)
    spread = own_logits(model, IDS, positions=[3 * i for i in range(len(IDS))]).float().log_softmax(-1)
    return bool((usual - spread).abs().max() > ROUNDING)


def chooses_keys(model: PreTrainedModel) -> bool:
    """Whether layers choose by an index of their own which keys they read (DeepSeek V3.2). A short pass does not show
    it, since they choose only among many keys."""
    return any(type(part).__name__.endswith("Indexer") for part in model.modules())


def reads_both_directions(model: PreTrainedModel) -> bool:
    """Whether an id changes what the model says before it."""
    before = own_logits(model, IDS[:3]).float().log_softmax(-1)[0]
    after = own_logits(model, IDS, keep=len(IDS)).float().log_softmax(-1)[2]
    return bool((before - after).abs().max() > APART)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _look_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: query (1, heads, tokens, width) to (1, tokens, heads, width)."""
    found = _asked.get()
    hides = found.hidden(attention_mask, options.get("sliding_window"))
    layer = module.layer_idx
    found.calls.append(Call(layer, key.shape[1], key.shape[-1], value.shape[-1], hides))
    batch, heads, tokens, _ = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[-1]), None  # nobody reads the numbers of this pass


def _look_mask(*args: Any, mask_function: Callable[..., Any], **options: Any) -> Tensor:
    """transformers' mask function. The mask is made even where a kernel would need none."""
    options |= {"mask_function": mask_function, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = sdpa_mask(*args, **options)
    assert mask is not None
    return _asked.get().note_mask(mask, mask_function)


ALL_ATTENTION_FUNCTIONS.register(LOOK, _look_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(LOOK, _look_mask)
