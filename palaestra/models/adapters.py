"""Adapters: low-rank additions to the linear layers of a model whose own weights stay as they are (LoRA, by peft).

    layer(x) = W x + alpha / rank · B A x          A (rank, in) random, B (out, rank) zero at the start

Several adapters can share one model. In training they share its modules, and each call names the adapter whose
additions apply (`adding`). For generation and for files, each adapter also has a peft model over the same weights.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from palaestra.errors import CheckpointError, RecipeError, described, missing_extra, nearest, out_of_memory
from palaestra.models.own_head import language_part
from palaestra.models.pretrained import description, fault_apart
from palaestra.models.quantized import dequantized, without_notices
from palaestra.models.weight_files import open_weights, reason

FOLDER = "adapter"  # in an exported policy: the adapter in peft's format, beside the model that it is merged into
CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# Entries of adapter_config.json: those that say what the additions are, and those that no longer matter after training.
READ = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "target_modules",
        "exclude_modules", "layers_to_transform", "layers_pattern"}  # fmt: skip
UNREAD = {"peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision",
          "inference_mode", "lora_dropout", "init_lora_weights", "eva_config"}  # fmt: skip
BEGINNINGS = (True, False, "gaussian", "orthogonal", "eva")  # other ones change the weights of the base
# Compares regular expressions with names as peft does.
TRIAL = """
import json, re, sys

patterns, names = json.load(sys.stdin)
for pattern in patterns:
    for name in names:
        re.fullmatch(pattern, name)
        re.match(rf"(.*\\.)?({pattern})$", name)
        re.match(rf"(?:^|.*?\\.){pattern}\\.(?P<idx>\\d+)\\.", name)
"""
FITTING = "Give a folder that `palaestra export` or peft's `save_pretrained` wrote for an adapter on this model."


@functools.cache
def package() -> Any:
    """The package peft. Raises: MissingExtra, if it is not installed."""
    try:
        with without_notices():  # peft imports bitsandbytes, if it is installed
            return importlib.import_module("peft")
    except ImportError as error:
        raise missing_extra("peft", extra="lora", needed_for="policy: adapter") from error


def sharing(model: nn.Module) -> Any:
    """A copy of the model that shares its weights in memory. In the copy they have no gradient."""
    same: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    same |= {id(b): b for b in model.buffers()}
    return copy.deepcopy(model, same)


def add_adapter(model: nn.Module, *, rank: int, alpha: float, targets: Sequence[str] | None, seed: int) -> Any:
    """A new adapter on a model, whose weights it shares. At first it computes the same as the model.

    Args:
        model: a model of transformers; it does not change.
        rank: of the additions.
        alpha: the additions are multiplied by alpha / rank.
        targets: names, or ends of names, of linear layers; None: all but the output layer. Of a vision–language model,
            None leaves out the layers that read images.
        seed: for the initial A; the global random state does not change.

    Raises: RecipeError, if no linear layer has such a name; MissingExtra, without peft.
    """
    found = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    for target in targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in found):
            ends = sorted({name.rpartition(".")[2] for name in found})
            raise RecipeError(
                where="policy: adapter.targets",
                what=f"the model has no linear layer called `{target}`.",
                options=nearest(target, ends) or ends,
                remedy=f"Its linear layers are: {', '.join(ends)}. Leave `targets` out to adapt all but the output.",
            )
    config = package().LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear" if targets is None else list(targets),
        exclude_modules=outside_language(model) if targets is None else None,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _quiet():
            adapter = package().get_peft_model(sharing(model), config).eval()
    _refuse_shared(model, adapter)
    return adapter


def _refuse_shared(model: nn.Module, adapter: Any) -> None:
    """Refuse additions to a layer whose weights stand at several places. They would apply at one of them, and after
    merging at all. The output layer may share its weights with the embeddings, since `merged` gives it its own.

    Raises: RecipeError.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    base, output = adapter.get_base_model(), model.get_output_embeddings()  # type: ignore[operator]
    for place in (name for name, part in base.named_modules() if low_rank(part) is not None):
        layer = model.get_submodule(place)
        sharers = sorted({name for tensor in layer.parameters(recurse=False) for name in names[id(tensor)]})
        if layer is not output and any(name.rpartition(".")[0] != place for name in sharers):
            raise RecipeError(
                where="policy: adapter.targets",
                what=f"the weights of the layer `{place}` stand at several places: {', '.join(sharers[:4])}.",
                remedy="Name layers in `targets` whose weights no other layer has.",
            )


def outside_language(model: nn.Module) -> list[str] | None:
    """The linear layers of a vision–language model that read images; None for other models."""
    inside = {id(part) for part in language_part(model).modules()}
    inside.add(id(model.get_output_embeddings()))  # type: ignore[operator]
    return [n for n, part in model.named_modules() if isinstance(part, nn.Linear) and id(part) not in inside] or None


def load_adapter(model: nn.Module, folder: str) -> Any:
    """Load an adapter that peft or `palaestra export` wrote, on a model whose weights it shares.

    Raises: CheckpointError, if the folder holds no adapter that fits the model, if it lacks weights or has others, if
        it was trained on another model, or if it has more than plain low-rank additions; MissingExtra, without peft.
    """
    place, where = _place_of(folder), f"policy: adapter, {folder}"
    said = _described(place, where)
    _refuse_other_base(said["base_model_name_or_path"], model, where)
    _refuse_slow_patterns(said, [name for name, _ in model.named_modules()], where)
    options = {name: said[name] for name in READ if name in said} | {"init_lora_weights": True}
    peft = package()
    try:
        config = peft.LoraConfig(**options, task_type="CAUSAL_LM")
        with _quiet():
            # Without memory for what the config asks for, until the files turn out to have it.
            adapter = peft.get_peft_model(sharing(model), config, low_cpu_mem_usage=True)
            loaded = adapter.load_adapter(str(place), "default", is_trainable=True, low_cpu_mem_usage=True)
    except Exception as error:  # peft, torch and safetensors have several, and some check nothing first
        if out_of_memory(error):
            raise
        what = f"it does not fit the model: {reason(error)}."
        raise CheckpointError(where=where, what=what, remedy=FITTING) from error
    for names, what in (
        (loaded.missing_keys, "its files lack {} of the adapter's weights, such as `{}`."),
        (
            loaded.unexpected_keys,
            "{} of its weights have no place in the model or in its adapter_config.json, such as `{}`.",
        ),
    ):
        if names:
            raise CheckpointError(where=where, what=what.format(len(names), sorted(names)[0]), remedy=FITTING)
    _refuse_shared(model, adapter)
    parts = additions_of(adapter).values()
    numbers = (number for a, b, scaling in parts for number in (a.weight, b.weight, torch.tensor(scaling)))
    if not all(number.isfinite().all() for number in numbers):
        raise CheckpointError(where=where, what="some of its numbers are infinite or no numbers.", remedy=FITTING)
    return adapter.eval()


def _described(place: Path, where: str) -> dict[str, Any]:
    """The adapter_config.json of a folder, with the base None if it names none.

    Raises: CheckpointError, if it needs more than plain low-rank additions, or its weights are not there.
    """
    said = description(place / CONFIG)
    kind = said.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(where=where, what=f"it is of kind {kind}, and only LORA can be read.")
    plain = {field.name: field.default for field in dataclasses.fields(package().LoraConfig)}
    beginning = said.get("init_lora_weights", True)
    other = [
        name for name, value in said.items() if name not in READ | UNREAD and value and value != plain.get(name)
    ] + ["init_lora_weights"] * (beginning not in BEGINNINGS)
    if other:
        raise CheckpointError(
            where=where,
            what=f"its adapter_config.json sets `{other[0]}` to {str(said[other[0]])[:40]!r}, and only plain low-rank "
            "additions to linear layers are read.",
            remedy="Use plain LoRA: no DoRA, no biases, no further trained modules or embeddings, and no start that "
            "changes the weights of the base.",
        )
    if not any((place / name).is_file() for name in WEIGHTS):
        what = f"its weights are not there: it has neither {' nor '.join(WEIGHTS)}."
        raise CheckpointError(where=where, what=what, remedy=FITTING)
    return {"base_model_name_or_path": None, **said}


def _refuse_other_base(trained_on: Any, model: Any, where: str) -> None:
    """Refuse an adapter whose files name another base than this model. A model that has no name fits any.

    Raises: CheckpointError.
    """
    given = str(model.name_or_path)
    if trained_on and given and _last(str(trained_on)) != _last(given):
        raise CheckpointError(
            where=where,
            what=f"it was trained on the model `{trained_on}`, and this one is `{given}`.",
            remedy="Give the base that model. If they have the same weights, set `base_model_name_or_path` in "
            "adapter_config.json to null.",
        )


def _refuse_slow_patterns(said: Mapping[str, Any], layers: Sequence[str], where: str) -> None:
    """Refuse regular expressions of an adapter_config.json that take too long to compare with the names of the layers.

    Raises: CheckpointError.
    """
    values = (said.get(key) for key in ("target_modules", "exclude_modules", "layers_pattern"))
    patterns = [*(said.get("rank_pattern") or ()), *(said.get("alpha_pattern") or ())]
    for value in values:
        patterns += value if isinstance(value, list) else [value]
    slow = [pattern for pattern in patterns if isinstance(pattern, str) and set(pattern) & set("*+{")]
    fault = fault_apart(TRIAL, [slow, list(layers)]) if slow else ""
    if fault:
        what = f"a pattern in its adapter_config.json cannot be compared with the names of layers: {fault.rstrip('.')}."
        raise CheckpointError(where=where, what=what, remedy="Name the layers, or use a simpler pattern.")


def _last(name: str) -> str:
    """A model's name without its owner and the folders above it, also in the cache of the Hugging Face hub."""
    parts = Path(name).resolve().parts
    kept = [part for part in parts if part.startswith("models--")]
    return (kept or parts)[-1].rpartition("--")[2].lower()


def save_adapter(adapter: Any, folder: Path) -> None:
    """Write an adapter alone, in peft's format."""
    with _quiet():
        adapter.save_pretrained(folder, save_embedding_layers=False)
    open_weights(folder)


def rank_and_targets(folder: str) -> tuple[int, list[str] | None]:
    """The rank of a saved adapter, and the ends of the names of its layers; None: all, or a pattern decides.

    Raises: CheckpointError, if the folder holds no adapter.
    """
    place = _place_of(folder)
    config = description(place / CONFIG)
    try:
        rank, targets = int(config["r"]), config["target_modules"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"its {CONFIG} cannot be read: {described(error)}"
        raise CheckpointError(where=f"policy: adapter, {folder}", what=what) from error
    return rank, sorted(map(str, targets)) if isinstance(targets, list) else None


def _place_of(folder: str) -> Path:
    place = Path(folder)
    place = place / FOLDER if (place / FOLDER).is_dir() else place
    if not (place / CONFIG).is_file():
        raise CheckpointError(
            where=f"policy: adapter, {folder}",
            what="it holds no adapter: there is no adapter_config.json.",
            remedy="Give a folder that `palaestra export` or peft's `save_pretrained` wrote for an adapter.",
        )
    return place


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings that peft causes by calling functions which transformers has renamed, and those about an output
    layer that shares its weights with the embeddings, for which `merged` cares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "Model (has|with) `tie_word_embeddings=True`")
        yield


def second(adapter: Any, own: nn.Module) -> Any:
    """A copy of an adapter that shares the model's weights and copies the trained ones, `own`."""
    trained = {id(p) for p in own.parameters()}
    same: dict[int, Any] = {id(p): p for p in adapter.parameters() if id(p) not in trained}
    return copy.deepcopy(adapter, same | {id(b): b for b in adapter.buffers()})


def merged(adapter: Any) -> Any:
    """A copy of the model with the additions merged into its weights.

    Weights of 4 or 8 bits become whole ones first, since a merged weight that is quantized again loses the addition,
    and the copy is then on the CPU. An output layer with an addition gets weights of its own, if it shares them with
    the embeddings.
    """
    copied = dequantized(adapter, adapter.get_base_model().dtype)
    _untie(copied.get_base_model())
    with _quiet():
        return copied.merge_and_unload()


def _untie(model: Any) -> None:
    """Give the output layer weights of its own, if it has an addition and shares its weights with the embeddings."""
    weight: Tensor = model.get_input_embeddings().weight
    adapted = low_rank(model.get_output_embeddings())
    if adapted is None or adapted[0].weight is not weight:
        return
    adapted[0].weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def own_weights(adapter: Any) -> nn.Module:
    """The trained modules of a model with an adapter, under their names in the model."""
    root = nn.Module()
    for name, part in adapter.get_base_model().named_modules():
        if any(p.requires_grad for p in part.parameters(recurse=False)):
            _place(root, name.split("."), part)
    return root


class Addition(NamedTuple):
    """The addition to one linear layer: x ↦ scaling · B(A(x))."""

    a: nn.Linear
    b: nn.Linear
    scaling: float


Additions = Mapping[str, Addition]  # by the layer's place in the model
_additions: ContextVar[Additions | None] = ContextVar("palaestra_additions", default=None)


@contextmanager
def adding(additions: Additions | None) -> Iterator[None]:
    """Set the additions that the layers of a shared model apply inside this block; None: no additions."""
    token = _additions.set(additions)
    try:
        yield
    finally:
        _additions.reset(token)


class AdaptedLinear(nn.Module):
    """A linear layer of a model that several adapters share.

    Args:
        layer: the linear layer. place: its name in the model.
        fixed: an addition for every call, in place of those that `adding` sets.
    """

    def __init__(self, layer: nn.Module, place: str, fixed: Addition | None = None) -> None:
        super().__init__()
        self.base_layer, self.place, self.fixed = layer, place, fixed
        if fixed is not None:
            self.lora_A, self.lora_B = fixed.a, fixed.b

    def forward(self, x: Tensor) -> Tensor:
        """layer(x) + scaling · B(A(x)), with the fixed addition or that of this call; layer(x) without one."""
        result = self.base_layer(x)
        found = self.fixed or (_additions.get() or {}).get(self.place)
        if found is None:
            return result  # type: ignore[no-any-return]
        if found.a.weight.dtype == x.dtype:
            return result + found.b(found.a(x) * found.scaling)  # type: ignore[no-any-return]
        # Additions keep float32 weights beside a layer in bfloat16, and are computed like the layer.
        a, b = found.a.weight.to(x.dtype), found.b.weight.to(x.dtype)
        return result + F.linear(F.linear(x, a) * found.scaling, b)  # type: ignore[no-any-return]


def adapt(model: nn.Module, places: Mapping[str, Addition | None]) -> None:
    """Make these layers of a model apply the additions of a call, or fixed ones. Adapted layers do not change."""
    for place, fixed in places.items():
        layer = model.get_submodule(place)
        if not isinstance(layer, AdaptedLinear):
            model.set_submodule(place, AdaptedLinear(layer, place, fixed))


def additions_of(adapter: Any) -> dict[str, Addition]:
    """The additions of a model with an adapter, by the names of their layers.

    Raises: CheckpointError, if more than plain low-rank additions is trained.
    """
    found, rest = {}, {id(p) for p in own_weights(adapter).parameters()}
    for place, part in adapter.get_base_model().named_modules():
        plain = low_rank(part)
        if plain is not None:
            found[place] = plain[1]
            rest -= {id(p) for p in (*plain[1].a.parameters(), *plain[1].b.parameters())}
    if rest:
        raise CheckpointError(
            where="policy: adapter",
            what=f"{len(rest)} of its trained tensors are no low-rank additions to linear layers.",
            remedy="Use plain LoRA: no DoRA, no biases, and no further trained modules or embeddings.",
        )
    return found


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model, each once, by their names in the model without additions. Those of an addition are called
    `….lora_A` and `….lora_B`."""
    known = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in known:
            known.add(tensor.data_ptr())
            yield re.sub(r"(\.lora_[AB])\..*", r"\1", name.replace(".base_layer.", ".")), tensor


def _place(root: nn.Module, path: Sequence[str], part: nn.Module) -> None:
    for name in path[:-1]:
        if name not in dict(root.named_children()):
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    root.add_module(path[-1], part)


def low_rank(part: nn.Module) -> tuple[nn.Module, Addition] | None:
    """The layer and its addition, for a linear layer with one plain low-rank addition; None for any other module.

    Dropout is ignored, since adapters are never in training mode.
    """
    if isinstance(part, AdaptedLinear):
        return None if part.fixed is None else (part.base_layer, part.fixed)
    if (type(part).__module__, type(part).__name__) != ("peft.tuners.lora.layer", "Linear"):
        return None
    layer: Any = part
    names = list(layer.lora_A)
    plain = len(names) == 1 and layer.active_adapters == names and not layer.merged and not layer.disable_adapters
    if not plain or layer.lora_variant:
        return None
    a, b = layer.lora_A[names[0]], layer.lora_B[names[0]]
    if a.bias is not None or b.bias is not None:
        return None
    return layer.base_layer, Addition(a, b, float(layer.scaling[names[0]]))
