"""Folders that carry weights to a server: a model in Hugging Face format, or an adapter in peft's format."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from palaestra.errors import RecipeError
from palaestra.models.adapters import low_rank, named_tensors
from palaestra.models.quantized import QuantizedLinear
from palaestra.models.weight_files import open_weights, save_weights, without_progress_bars

KINDS = ("lora_A", "lora_B")


def scalings_of(model: Any) -> dict[str, float]:
    """The factors of the low-rank additions of a model, by layer. Empty for a model without additions."""
    parts = {name: low_rank(part) for name, part in model.named_modules()}
    return {name: found[1].scaling for name, found in parts.items() if found is not None}


def write_model(
    model: Any,
    folder: Path,
    *,
    where: str,
    head_apart: bool = False,
    change: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> None:
    """Write a model without its additions: its config, and each weight once in safetensors files.

    The folder appears only when it is complete.

    Args:
        head_apart: write the output layer also if it shares its weights with the embeddings.
        change: what is written in place of the tensors.

    Raises: RecipeError, for a model whose weights have 4 or 8 bits.
    """
    if any(isinstance(part, QuantizedLinear) for part in model.modules()):
        raise RecipeError(
            where=where,
            what="the model holds its weights in 4 or 8 bits, and a server cannot read these.",
            remedy="Start the server with the same model, and set `initial_weights: false`.",
        )
    tensors = {name: tensor for name, tensor in named_tensors(model) if not name.endswith(KINDS)}
    tensors = tensors if change is None else change(model, tensors)
    tensors |= _head_of(model, tensors) if head_apart else {}

    def write(place: Path) -> None:
        with without_progress_bars():
            model.save_pretrained(place, state_dict=tensors)
        open_weights(place)

    _completed(folder, write)


def _head_of(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the weights of the output layer by its name, if they are those of the embeddings; otherwise nothing."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return {}
    names = {id(part): name for name, part in model.named_modules()}
    return {f"{names[id(head)]}.weight": tensors[f"{names[id(embeddings)]}.weight"].detach().clone()}


def write_adapter(tensors: Mapping[str, Tensor], scalings: Mapping[str, float], folder: Path) -> None:
    """Write low-rank additions in peft's format.

    Args:
        tensors: by the names of `named_tensors`, `LAYER.lora_A` (rank, in) and `LAYER.lora_B` (out, rank).
        scalings: factors of the additions by layer.
    """
    layers = {name.rpartition(".")[0] for name in tensors}
    ranks = {name.rpartition(".")[0]: tensor.shape[0] for name, tensor in tensors.items() if name.endswith("lora_A")}
    alphas = {layer: scalings[layer] * rank for layer, rank in ranks.items()}
    rank, alpha = max(ranks.values()), max(alphas.values())
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {layer: other for layer, other in ranks.items() if other != rank},
        "alpha_pattern": {layer: other for layer, other in alphas.items() if other != alpha},
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
    }
    named = {f"base_model.model.{name}.weight": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(place: Path) -> None:
        save_weights(named, place / "adapter_model.safetensors")
        (place / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

    _completed(folder, write)


def _completed(folder: Path, write: Callable[[Path], None]) -> None:
    beside = folder.with_name(f".{folder.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    write(beside)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(beside, folder)
