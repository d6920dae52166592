"""The memory that a model needs, counted without its weights: from its configuration, on tensors without numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.models.pretrained import located

PROBE = 127  # tokens of the sequence that is counted, a number that no width has


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a causal language model.

    Attributes:
        parameters: number of weights, tied ones counted once.
        linear: for each linear layer but the output, the widths of its input and its output.
        kept_per_token: numbers that a pass keeps for the backward pass, for each token that the model reads.
        cache_per_token: numbers of keys and values for each token of a session.
        vocabulary: number of logits.
    """

    parameters: int
    linear: tuple[tuple[int, int], ...]
    kept_per_token: int
    cache_per_token: int
    vocabulary: int

    def additions(self, rank: int) -> int:
        """Number of weights of low-rank additions to all linear layers but the output."""
        return sum(rank * (inputs + outputs) for inputs, outputs in self.linear)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """Sizes of a policy with a pretrained model.

    Attributes:
        model: the sizes of its model. trained: number of weights that training changes, if the policy is trained.
        holds_model: whether the policy holds the model. False: an adapter on the model of its base.
        adds: whether low-rank additions are trained, and not the model's own weights.
        chunk: most logits that a pass computes at once.
    """

    model: ModelSize
    trained: int
    holds_model: bool
    adds: bool
    chunk: int


@functools.cache
def size_of(model: str) -> ModelSize:
    """The sizes of a model on this machine. It reads the configuration and takes about a second.

    Raises: CheckpointError, if the model is not on this machine.
    """
    config = AutoConfig.from_pretrained(located(model), local_files_only=True)
    with torch.device("meta"):
        empty: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    text = config.get_text_config()
    said = text.to_dict()  # some configurations leave out what follows from other values
    heads = text.num_attention_heads
    width, groups = said.get("head_dim") or text.hidden_size // heads, said.get("num_key_value_heads") or heads
    output = empty.get_output_embeddings()
    return ModelSize(
        parameters=sum(p.numel() for p in empty.parameters()),
        linear=tuple(
            (part.in_features, part.out_features)
            for part in empty.modules()
            if isinstance(part, nn.Linear) and part is not output
        ),
        kept_per_token=_kept(empty) // PROBE,
        cache_per_token=2 * text.num_hidden_layers * groups * width,
        vocabulary=text.vocab_size,
    )


def _kept(empty: Any) -> int:
    """Numbers that a forward pass of `PROBE` tokens, without the output layer, keeps for the backward pass.

    The pass runs on fake tensors of the CPU, which have a shape and no numbers, so that attention takes the kernel that
    training takes.
    """
    kept: dict[int, tuple[int, Any]] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = empty.to_empty(device="cpu")
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            # A real pass has no causal mask: its kernel is told that attention is causal.
            if storage._cdata not in weights and tensor.shape != (1, 1, PROBE, PROBE):
                kept[storage._cdata] = (storage.nbytes() // 4, storage)  # held, so that its address is not used again
            return tensor

        with saved_tensors_hooks(note, lambda tensor: tensor):
            hidden = model.base_model(input_ids=torch.zeros(1, PROBE, dtype=torch.long), use_cache=False)
        del hidden
    return sum(numbers for numbers, _ in kept.values())
