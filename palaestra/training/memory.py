"""The memory that a run needs, known before anything starts. `palaestra plan` shows it, and `train` refuses what cannot
fit.

Counted are pretrained models: their weights, what training adds, copies of them and further models that parts load, one
pass of an update, and on a CPU the program. The cache of generation is freed before an update, and has a line of its
own. Models that are made on the spot are small and not counted.

A recipe without `training.token_budget` gets one here. It decides how batches are cut, and so the memory of a pass. The
numbers that an update computes do not depend on it, except for rounding.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from palaestra.engines.heap import GROWTH
from palaestra.engines.memory import is_share, limit_of
from palaestra.errors import RecipeError
from palaestra.models.devices import free_bytes, run_device
from palaestra.models.precision import chosen_dtype
from palaestra.models.products import packs_bfloat16
from palaestra.models.sizes import LoadedModel, PolicySize, copy_of
from palaestra.policies.frozen_head import rows_at_once
from palaestra.registry import Section, declared
from palaestra.registry.bound import BoundPart
from palaestra.training.settings import TOKEN_BUDGET, PolicySettings, RunSettings

WIDTHS = {"bfloat16": 2, "float32": 4, "float64": 8}  # bytes of a number
MASTER = WIDTHS["float32"]  # master weights, gradients and logits have at least this precision
STATES = 2  # numbers that AdamW keeps for each trained weight
LOGITS = 3  # a chunk of logits exists as logits, as log-probabilities and as probabilities or a gradient
TEMPORARY = 1.15  # a backward pass needs about an eighth more than what is kept (measured with SmolLM2)
# On a CPU the program shares the memory of the model. Bytes, measured with SmolLM2 in whole runs.
LIBRARIES = 800_000_000
KERNELS = 900_000_000  # that oneDNN keeps for products in bfloat16 (see ONEDNN_PRIMITIVE_CACHE_CAPACITY)
BUDGETS = tuple(TOKEN_BUDGET // 2**halvings for halvings in range(5))  # few, so that machines often choose the same
ROOM = 0.5  # the share of free memory that a run with a chosen budget may fill
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One line of the plan. `always`: it is held during the whole run, and not only in one phase."""

    what: str
    size: int
    how: str
    always: bool = True


def needs_of(settings: RunSettings) -> list[Need]:
    """What the pretrained models of a recipe need, in bytes. Empty, if the recipe has none.

    A pass is left out if it cannot be counted for an architecture. Without a token budget, passes have the chosen one.

    Raises: CheckpointError, if a model is not on this machine.
    """
    return _needs(with_budget(settings))


def with_budget(settings: RunSettings) -> RunSettings:
    """The settings with a token budget: their own, or the one that is chosen now.

    Chosen is the largest of `BUDGETS` with which the run fits. It is the largest of all if no pretrained model is
    loaded or nothing can be counted, and the smallest if none fits.
    """
    if settings.training.token_budget is not None:
        return settings
    free, tried = None if settings.training.shard else _free(settings), settings
    for budget in BUDGETS:
        tried = settings.model_copy(update={"training": settings.training.model_copy(update={"token_budget": budget})})
        if free is None or sum(row.size for row in _needs(tried)) <= ROOM * free:
            break
    return tried


def _free(settings: RunSettings) -> int | None:
    """Bytes of the device that are free for this process. On a CPU, the processes of a run on one machine share it."""
    free, on_cpu = free_bytes(settings.device), settings.device.partition(":")[0] == "cpu"
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if free is not None and on_cpu else free


def _needs(settings: RunSettings) -> list[Need]:
    """The lines for settings with a token budget."""
    dtype, sizes = _dtype(settings), _sizes(settings)
    rows: list[Need] = []
    passes: list[Need] = []
    for name, size in sizes.items():
        own = settings.policies[name]
        if size.holds_model:
            rows.append(_weights(f"weights of {name}", size, WIDTHS[dtype], dtype))
        if own.trainable:
            rows.append(_training(name, size, settings))
            passes += _pass(name, size, settings)
    for loaded in _loaded(settings, sizes):
        rows.append(_copies(loaded, dtype))
        if loaded.learns and loaded.counted:
            passes += _pass(loaded.what, dataclasses.replace(loaded.size, adds=loaded.adds), settings)
    if passes:
        rows.append(max(passes, key=lambda need: need.size))
    if rows and settings.device.partition(":")[0] == "cpu":
        rows.append(_program(dtype))
    return rows


def _loaded(settings: RunSettings, sizes: Mapping[str, PolicySize]) -> list[LoadedModel]:
    """The models beside those of the policies: references, copies that act, and what parts declare in `loads`."""
    training, loaded = settings.training, []
    for name, size in sizes.items():
        if size.trainable and (settings.policies[name].reference or settings.reference):
            loaded.append(copy_of(size, f"reference of {name}"))
        if training.lag or training.actor_noise or training.max_staleness:
            loaded.append(copy_of(size, f"copy of {name} that acts"))
        if training.lag or training.actor_noise:  # also the weights of the present iteration
            loaded.append(copy_of(size, f"former weights of {name}", count=training.lag + 1))
    for part in bound_parts(settings):
        loads = declared(part.part.target, "loads")
        loaded += [] if loads is None else loads(part.options, sizes, settings)
    return loaded


def bound_parts(value: Any) -> Iterator[BoundPart]:
    """All parts in a section of the settings."""
    if isinstance(value, BoundPart):
        yield value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            yield from bound_parts(getattr(value, name))
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from bound_parts(inner)


def _copies(loaded: LoadedModel, dtype: str) -> Need:
    """The line of models that a part loads: weights, and if it trains them, gradients and states of its optimizer."""
    size, width = loaded.size, WIDTHS[dtype]
    times = f"{loaded.count} times " if loaded.count > 1 else ""
    if loaded.adds:
        width, held = max(width, MASTER), max(width, MASTER) * size.trained
        how = f"{times}{size.trained / 1e6:,.1f} million weights of low-rank additions"
    else:
        held = size.weight_bytes(width)
        how = f"{times}{_weights('', size, width, dtype).how}"
    if loaded.learns:
        held += width * (size.trained if loaded.adds else size.model.parameters) * (1 + STATES)
        how += ", their gradients, and two states of the optimizer"
    return Need(what=loaded.what, size=loaded.count * held, how=how)


def _dtype(settings: RunSettings) -> str:
    return chosen_dtype(settings.dtype, settings.device)


def _sizes(settings: RunSettings) -> dict[str, PolicySize]:
    """The sizes of the policies with pretrained models, by name. An adapter has the model of its base."""
    found: dict[str, PolicySize] = {}
    for name in sorted(settings.policies, key=lambda name: _is_adapter(settings.policies[name])):  # after their bases
        own = settings.policies[name]
        count = declared(own.policy.part.target, "model_size")
        options = own.policy.options if own.load is None else {**own.policy.options, "model": own.load}
        size = None if count is None else count(options, found)
        if size is not None:
            found[name] = dataclasses.replace(size, trainable=own.trainable)
    return found


def _is_adapter(settings: PolicySettings) -> bool:
    return declared(settings.policy.part.target, "stands_on") is not None


def _weights(what: str, size: PolicySize, width: int, dtype: str) -> Need:
    count, quantized = size.model.parameters, 0 if size.held is None else size.model.in_layers
    how = f"{(count - quantized) / 1e6:,.1f} million in {dtype}"
    if quantized:
        how = f"{quantized / 1e6:,.1f} million in {size.held}, {how}"
    return Need(what=what, size=size.weight_bytes(width), how=how)


def _training(name: str, size: PolicySize, settings: RunSettings) -> Need:
    width = max(WIDTHS[_dtype(settings)], MASTER)
    kinds = ["gradients", "two states of the optimizer"]
    if size.adds:
        kinds.append("the additions themselves")
    elif WIDTHS[_dtype(settings)] < MASTER:
        kinds.append("master weights")
    dtype = "float64" if width > MASTER else "float32"
    how = f"{size.trained / 1e6:,.1f} million trained weights in {dtype}: {', '.join(kinds)}"
    copies = len(kinds) - 1 + STATES
    return Need(what=f"training of {name}", size=size.trained * width * copies, how=how)


def _pass(name: str, size: PolicySize, settings: RunSettings) -> list[Need]:
    budget, model = settings.training.tokens_at_once, size.model
    kept = model.kept(_dtype(settings))
    if kept is None:
        return []
    each = int(TEMPORARY * kept)
    # With additions the output layer is frozen, and its logits are computed for a few tokens at a time.
    chunk = (
        rows_at_once(model.vocabulary, settings.device.partition(":")[0]) * model.vocabulary
        if size.adds
        else size.chunk
    )
    logits = min(budget * model.vocabulary, chunk) * MASTER * LOGITS
    how = f"training.token_budget={budget}: {shown(each)} a token, and {shown(logits)} of logits"
    computed = size.computed_bytes(WIDTHS[_dtype(settings)])
    if computed:
        how += f", and {shown(computed)} of a weight that is computed from its codes"
    need = budget * each + logits + computed
    return [Need(what=f"one pass of an update of {name}", size=need, how=how, always=False)]


def _program(dtype: str) -> Need:
    kernels = KERNELS if dtype == "bfloat16" else 0
    how = f"{shown(LIBRARIES)} of libraries, {shown(GROWTH)} of gaps between tensors"
    if kernels:
        how += f", {shown(kernels)} of kernels for bfloat16"
    return Need(what="the program", size=LIBRARIES + GROWTH + kernels, how=how)


def further_lines(settings: RunSettings) -> list[str]:
    """What a session of each policy costs in the engine, and what could not be counted."""
    lines = []
    elsewhere = declared(settings.engine.part.target, "elsewhere")
    if elsewhere is not None:
        lines.append(f"{elsewhere(settings.engine.options)} generates, with weights and cache in its own memory")
    sizes = _sizes(settings)
    if sizes and settings.training.token_budget is None:
        lines.append("training.token_budget is not set: the start of a run chooses it by the free memory, and keeps it")
    for name, size in sizes.items():
        if elsewhere is not None and settings.policies[name].trainable:
            written = size.trained if size.adds else size.model.parameters
            lines.append(f"each update of {name} writes {shown(written * WIDTHS[_dtype(settings)])} for it")
        if elsewhere is None and size.holds_model and size.model.cache_per_token is not None:
            each = size.model.cache_per_token * WIDTHS[_dtype(settings)]
            lines.append(f"cache of {name}: {shown(each)} for each token of a session, {shown(1000 * each)} for 1,000")
            lines += [*_limit(each, settings, policies=len(sizes)), *_copy(name, size, settings)]
        if settings.policies[name].trainable and size.model.kept(_dtype(settings)) is None:
            lines.append(f"one pass of an update of {name} cannot be counted for this architecture")
    for loaded in _loaded(settings, sizes):
        if not loaded.counted:
            lines.append(f"passes of the {loaded.what} are not counted: their size follows from the episodes")
    if settings.training.shard:
        lines.append("training.shard spreads weights and what training adds over the processes; the lines count all")
    return lines


def _limit(each: int, settings: RunSettings, *, policies: int) -> list[str]:
    """How much the cache of one policy may take. each: bytes for each token."""
    limit = _cache_limit(settings)
    if limit is None:
        return []
    share = limit // policies
    tokens = f"{share // each:,} tokens of all sessions together"
    return [
        f"engine.{settings.engine.name}.memory: at most {shown(share)} of it, {tokens}. It is freed before an update"
    ]


def _cache_limit(settings: RunSettings) -> int | None:
    """The most bytes of keys and values in this process; None: they are elsewhere, or nothing limits them."""
    if "memory" not in settings.engine.options or declared(settings.engine.part.target, "elsewhere") is not None:
        return None
    return limit_of(settings.engine.options["memory"], torch.device(settings.device))


def _copy(name: str, size: PolicySize, settings: RunSettings) -> list[str]:
    """The engine's copy of the weights, which is freed before an update like its cache."""
    on_cpu = settings.device.partition(":")[0] == "cpu"
    if not on_cpu or _dtype(settings) != "bfloat16" or not packs_bfloat16() or not size.packed_bytes(1):
        return []
    return [
        f"generation with {name}: {shown(size.packed_bytes(WIDTHS['bfloat16']))} for weights as they are multiplied"
    ]


def refuse_what_cannot_fit(settings: RunSettings) -> None:
    """Refuse a device that cannot be used, and pretrained models that need more memory than it has.

    Raises: RecipeError, with the numbers.
    """
    run_device(settings.device)
    settings = with_budget(settings)
    rows = [] if settings.training.shard else _needs(settings)  # with shards, each process needs only its share
    free = _free(settings) if rows else None
    total = sum(row.size for row in rows)
    if free is None:
        return
    limit, held = _cache_limit(settings) or 0, sum(row.size for row in rows if row.always)
    if total <= free < held + limit and not is_share(settings.engine.options["memory"]):
        raise RecipeError(
            where=f"engine.{settings.engine.name}.memory",
            what=f"the cache of generation may take {shown(limit)}, the run holds {shown(held)} beside it, and "
            f"{shown(free)} are free.",
            remedy=f"Set it to {shown(free - held)} or less, or leave it out: a share of what is free.",
        )
    if total <= free:
        return
    listed = "; ".join(f"{row.what} {shown(row.size)}" for row in rows)
    raise RecipeError(
        where=f"device: {settings.device}",
        what=f"the run needs {shown(total)}, and {shown(free)} are free: {listed}.",
        remedy=_remedy(settings, rows, free),
    )


def _remedy(settings: RunSettings, rows: list[Need], free: int) -> str:
    held = sum(row.size for row in rows if row.always)
    passing = sum(row.size for row in rows if not row.always)
    budget = settings.training.tokens_at_once
    if passing and held < free:
        fits = int(budget * 0.9 * (free - held) / passing) // 64 * 64
        if fits:
            return f"Set training.token_budget={fits}, or a smaller number."
    if _dtype(settings) != "bfloat16":
        return "Set dtype=bfloat16, train low-rank additions instead of all weights (`lora`), or take a smaller model."
    return "Train low-rank additions instead of all weights (`lora`), or take a smaller model."


def shown(size: float) -> str:
    """A number of bytes for people, such as `1.5 GB`."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"
