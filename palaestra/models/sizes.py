"""The memory that a model needs, counted without its weights: from its configuration, on tensors without numbers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from palaestra.models.adapters import outside_language
from palaestra.models.causal_lm import kind_of
from palaestra.models.pretrained import config_of, located
from palaestra.models.products import is_large
from palaestra.models.quantized import BYTES, held_kind

PROBE = 127  # tokens of the sequence that is counted, a number that no width has


class CacheShape(NamedTuple):
    """The shape of the keys and of the values that a model stores for each token.

    Attributes:
        width: of a key of one head. value_width: of a value of one head.
    """

    layers: int
    heads: int
    width: int
    value_width: int

    @property
    def numbers(self) -> int:
        """Numbers for each token."""
        return self.layers * self.heads * (self.width + self.value_width)


def cache_shape(config: Any) -> CacheShape:
    """The shape that follows from a configuration of transformers.

    Raises: AttributeError, for a model without attention.
    """
    text = config.get_text_config()
    said = text.to_dict()  # some configurations leave out what follows from other values
    heads = text.num_attention_heads
    if said.get("qk_nope_head_dim") is not None:  # latent attention: its layers compute keys of all heads
        width = text.qk_nope_head_dim + text.qk_rope_head_dim
        return CacheShape(text.num_hidden_layers, heads, width, text.v_head_dim)
    width = said.get("head_dim") or text.hidden_size // heads
    return CacheShape(text.num_hidden_layers, said.get("num_key_value_heads") or heads, width, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a causal language model. None: not known of this architecture.

    Attributes:
        folder: with its configuration.
        parameters: number of weights, tied ones counted once.
        linear: for each linear layer but the output, the two widths of its weight, by the layer's name.
        vision: those of them that read images.
        cache_per_token: numbers of keys and values for each token of a session.
        vocabulary: number of logits.
        output: number of weights of the output layer.
        packs: whether the engine keeps a copy of these and of the linear layers' weights, as the processor multiplies
            them, if it computes in bfloat16 on a CPU.
        held: the kind in which the folder holds the weights of the linear layers: nf4, fp4 or int8. None: whole.
    """

    folder: str
    parameters: int
    linear: Mapping[str, tuple[int, int]]
    vision: frozenset[str]
    cache_per_token: int | None
    vocabulary: int
    output: int
    packs: bool
    held: str | None = None

    def additions(self, rank: int, targets: Sequence[str] | None = None) -> int:
        """Number of weights of low-rank additions to linear layers but the output.

        Args:
            targets: names of layers, or what their names end with; None: all that do not read images.
        """
        wanted = [
            sum(widths)
            for name, widths in self.linear.items()
            if (name not in self.vision if targets is None else f".{name}".endswith(tuple(f".{t}" for t in targets)))
        ]
        return rank * sum(wanted)

    def kept(self, dtype: str) -> int | None:
        """Bytes that a pass keeps for the backward pass, for each token that the model reads. None: not known.

        In bfloat16 they are more than half of those in float32, since norms keep float32 numbers. Takes half a second.
        """
        return _kept(self.folder, dtype)

    @property
    def in_layers(self) -> int:
        """Number of weights of all linear layers but the output."""
        return sum(inputs * outputs for inputs, outputs in self.linear.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """Sizes of a policy with a pretrained model.

    Attributes:
        model: the sizes of its model. trained: number of weights that training changes, if the policy is trained.
        holds_model: whether the policy holds the model. False: an adapter on the model of its base.
        adds: whether low-rank additions are trained, and not the model's own weights.
        chunk: most logits that a pass computes at once, if the output layer is trained.
        held: the kind in which the policy holds the weights of all linear layers but the output: nf4, fp4 or int8.
            None: they are whole.
        trainable: whether the recipe trains it. The plan sets it.
    """

    model: ModelSize
    trained: int
    holds_model: bool
    adds: bool
    chunk: int
    held: str | None = None
    trainable: bool = True

    def weight_bytes(self, width: int) -> int:
        """Bytes of all weights, if a whole one takes `width` bytes."""
        if self.held is None:
            return self.model.parameters * width
        whole = self.model.parameters - self.model.in_layers
        return int(self.model.in_layers * BYTES[self.held]) + whole * width

    def packed_bytes(self, width: int) -> int:
        """Bytes of the engine's copy of the weights, if it keeps one."""
        return (self.model.in_layers + self.model.output) * width if self.model.packs and self.held is None else 0

    def computed_bytes(self, width: int) -> int:
        """Bytes of the largest weight that a pass computes from its codes."""
        return 0 if self.held is None else width * max((i * o for i, o in self.model.linear.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Models that a part loads or copies, beside those of the policies. The part declares them in `loads`.

    Attributes:
        what: for a line of the plan, such as `second model of main`.
        size: of the policy that is copied, or of the policy whose kind the model has.
        adds: whether each of them holds low-rank additions alone and shares the weights below them.
        count: how many there are, at most.
        learns: whether the part trains them with AdamW.
        counted: whether `training.token_budget` bounds the passes with a gradient, if the part trains them.
    """

    what: str
    size: PolicySize
    adds: bool = False
    count: int = 1
    learns: bool = False
    counted: bool = True


def copy_of(size: PolicySize, what: str, *, count: int = 1, learns: bool = False, counted: bool = True) -> LoadedModel:
    """Copies that the `clone` of a policy of this size makes: of an adapter, they are its additions alone."""
    return LoadedModel(what=what, size=size, adds=size.adds, count=count, learns=learns, counted=counted)


@functools.cache
def size_of(model: str) -> ModelSize | None:
    """The sizes of a model on this machine. It reads the configuration and takes about a second.

    Returns: None, if transformers cannot make such a model from its configuration. Loading it then says why.
    Raises: CheckpointError, if the model is not on this machine.
    """
    place = located(model)
    try:
        config = config_of(place)
        empty = _empty(config, "float32")
    except Exception:  # an architecture may fail by any exception
        return None
    output = empty.get_output_embeddings()
    layers = {
        name: (part.weight.shape[0], part.weight.shape[1])
        for name, part in empty.named_modules()
        if isinstance(part, nn.Linear | transformers.Conv1D) and part is not output
    }
    try:
        cached: int | None = cache_shape(config).numbers
    except AttributeError:
        cached = None
    return ModelSize(
        folder=place,
        parameters=sum(p.numel() for p in empty.parameters()),
        linear=layers,
        vision=frozenset(outside_language(empty) or ()),
        cache_per_token=cached,
        vocabulary=config.get_text_config().vocab_size,
        output=0 if output is None else output.weight.numel(),
        packs=type(empty) is transformers.LlamaForCausalLM and is_large(empty),
        held=held_kind(config, None),
    )


def _empty(config: Any, dtype: str) -> Any:
    """A model whose weights have shapes and no numbers."""
    with torch.device("meta"):
        return kind_of(config).from_config(config, dtype=getattr(torch, dtype))


@functools.cache
def _kept(folder: str, dtype: str) -> int | None:
    """Bytes that a forward pass of `PROBE` tokens, without the output layer, keeps for each of them.

    The pass runs on fake tensors of the CPU, which have a shape and no numbers, so that attention takes the kernel that
    training takes.

    Returns: None, if the pass needs numbers, as mixtures of experts and some rotary positions do.
    """
    kept: dict[int, tuple[int, Any]] = {}
    empty = _empty(config_of(folder), dtype)
    with _without_errors(), FakeTensorMode(allow_non_fake_inputs=True):
        model = empty.to_empty(device="cpu")
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            # A real pass has no causal mask: its kernel is told that attention is causal.
            if storage._cdata not in weights and tensor.shape != (1, 1, PROBE, PROBE):
                kept[storage._cdata] = (storage.nbytes(), storage)  # held, so that its address is not used again
            return tensor

        try:
            with saved_tensors_hooks(note, lambda tensor: tensor):
                hidden = model.base_model(input_ids=torch.zeros(1, PROBE, dtype=torch.long), use_cache=False)
        except Exception:  # an architecture may fail by any exception
            return None
        del hidden
    return sum(size for size, _ in kept.values()) // PROBE


@contextmanager
def _without_errors() -> Iterator[None]:
    """Hide the errors that torch logs when a pass on fake tensors fails."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
