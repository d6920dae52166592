"""Causal language models: small untrained ones, and those loaded from a Hugging Face folder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from palaestra.errors import CheckpointError, InvalidData, PalaestraError, out_of_memory
from palaestra.models.pretrained import config_of, located, missing_weights, refuse_outside, refuse_own_code
from palaestra.models.quantized import held_kind, hold, loading_options
from palaestra.models.weight_files import reason, without_progress_bars


def make_causal_lm(
    *,
    vocabulary: int,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    intermediate: int | None = None,
    context: int = 1024,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A small Llama with tied embeddings, float32, untrained.

    Args:
        vocabulary: number of ids; use `len(tokenizer)`.
        hidden: width. Higher: learns more, slower. Usual: 64 to 256.
        layers: depth. Higher: learns more, slower. Usual: 2 to 4.
        heads: attention heads; must divide `hidden`, and the width of a head must be even (rotary positions).
        intermediate: width inside the MLP. None: 8/3 of `hidden`, rounded up to a multiple of 16.
        context: the most ids of one sequence.
        seed: equal seeds give equal weights; the global random state does not change.

    Raises: InvalidData, if `heads` does not fit `hidden`.
    """
    if hidden % heads or (hidden // heads) % 2:
        raise InvalidData(
            where="make_causal_lm(…)",
            what=f"hidden={hidden} cannot be cut into heads={heads} heads of even width.",
            options=[f"heads={n}" for n in (1, 2, 4, 8, 16) if hidden % n == 0 and (hidden // n) % 2 == 0],
        )
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate or math.ceil(hidden * 8 / 3 / 16) * 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float().eval()


def kind_of(config: Any) -> Any:
    """The class of transformers that makes a model of this configuration: with its vision tower, if it has one."""
    reads_images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if reads_images else AutoModelForCausalLM


def held_after_loading(model: str | Path, quantize: str | None) -> str | None:
    """The kind in which `load_causal_lm` will hold the weights of linear layers: nf4, fp4 or int8; None: whole ones.

    Raises: CheckpointError, if the model is not on this machine.
    """
    place = located(model)
    return held_kind(config_of(place), quantize)


def load_causal_lm(
    model: str | Path,
    *,
    dtype: torch.dtype | None = torch.float32,
    quantize: str | None = None,
    device: Any = "cpu",
) -> PreTrainedModel:
    """Load a causal language model, or a vision–language model, that is on this machine. Nothing is downloaded.

    Args:
        model: a Hugging Face folder, or a name or id as in `palaestra.models.pretrained.located`.
        dtype: of the weights; None: as they were saved.
        quantize: nf4 or int8, to hold the weights of linear layers in 4 or 8 bits. None: as they were saved.
        device: where quantized weights are put. Other weights are put on the CPU.

    Raises: CheckpointError, if it is not on this machine or is no causal language model, or if its weights cannot be
        quantized or are quantized in a way that cannot be used; MissingExtra, for quantized weights without
        bitsandbytes.
    """
    place, where = located(model), f"load_causal_lm({str(model)!r})"
    try:
        config = config_of(place)
        options = loading_options(config, quantize, device=device, where=where)
        double = bool(options) and dtype == torch.float64  # bitsandbytes does not read it
        options["adapter_kwargs"] = {"local_files_only": True}  # else the hub is asked whether it is an adapter
        options["dtype"] = "auto" if dtype is None else torch.float32 if double else dtype
        refuse_outside(place)
        with without_progress_bars():
            loaded, report = kind_of(config).from_pretrained(
                place, local_files_only=True, trust_remote_code=False, output_loading_info=True, **options
            )
        _refuse_gaps(loaded, report["missing_keys"], where=where)
        hold(loaded, where=where)
        loaded = loaded.double() if double else loaded
    except PalaestraError:
        raise
    except Exception as error:  # an architecture may fail by any exception
        if out_of_memory(error):
            raise
        refuse_own_code(place, error)
        first = reason(error)
        if "ignore_mismatched_sizes" in first:
            first = "its weights have other shapes than its config.json says"
        what = f"`{place}` is not a causal language model: {first}."
        remedy = "Give a folder that `save_pretrained` or `palaestra export` wrote."
        what, remedy = missing_weights(place) or (what, remedy)
        raise CheckpointError(where=where, what=what, remedy=remedy) from error
    return loaded.eval()  # type: ignore[no-any-return]


def _refuse_gaps(model: Any, missing: Iterable[str], *, where: str) -> None:
    """Refuse a model whose folder lacks weights, which transformers draws at random, or names ends that are no ids.

    Raises: CheckpointError.
    """
    lost, remedy = sorted(missing), "Give a folder that `save_pretrained` or `palaestra export` wrote."
    if lost:
        what = f"its files lack {len(lost)} of the model's weights, such as `{lost[0]}`."
        raise CheckpointError(where=where, what=what, remedy=remedy)
    ends = None if model.generation_config is None else model.generation_config.eos_token_id
    if any(type(end) is not int for end in (ends if isinstance(ends, list | tuple) else [ends]) if end is not None):
        what = f"`eos_token_id` in its generation_config.json is {str(ends)[:40]!r}, and ids are whole numbers."
        raise CheckpointError(where=where, what=what, remedy="Correct the file.")
