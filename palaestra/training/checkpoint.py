"""Checkpoints: weights, optimizer states and counters of a run. A resumed run has the same state bit for bit.

All tensors are written from the CPU, so a run can continue on another device. Random draws are derived from the number
of the iteration, so no random generator is saved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from palaestra.data.protocols import StatefulPart
from palaestra.errors import CheckpointError, PalaestraError, RunFolderError
from palaestra.models.devices import on_cpu
from palaestra.models.sharding import load_weights, whole
from palaestra.models.weight_files import save_weights
from palaestra.store.checksums import SUMS, cut_logs, file_fault, log_fault
from palaestra.store.folder import CHECKPOINTS, DECISIVE, EVALUATIONS, METRICS, RunFolder
from palaestra.store.json_text import plain
from palaestra.store.lines import OF_OTHER_FORM, STEP, JsonLines
from palaestra.store.metrics import read
from palaestra.training.settings import BUDGET

STATE = "state.json"
# What objects raise if they are given a state of another kind: a key or a module less, another shape, another length.
_UNFIT = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError)


@dataclass(slots=True)
class RunState:
    """The objects of a run whose state a checkpoint holds.

    Attributes:
        policies: by name; those whose weights are not those of a model folder are written.
        references: their frozen references.
        learners: by name; the stages' parts with state are among them.
        others: further objects with `state_dict`, by name, such as a sampler or a runner with suspended episodes.
        guard, panel: the run's `Guard` and `Panel`, whose states are JSON values.
        recipe: key of the recipe → its value, as `recipe_values` gives them.
    """

    policies: Mapping[str, Any]
    references: dict[str, Any] = field(default_factory=dict)
    learners: Mapping[str, StatefulPart] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    guard: Any = None
    panel: Any = None
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def with_weights(self) -> dict[str, Any]:
        """The policies that have weights."""
        return {name: policy for name, policy in self.policies.items() if policy.module is not None}

    @property
    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Every module whose weights are written, by the name of its file."""
        for name, policy in self.with_weights.items():
            if not as_loaded(policy):
                yield name, policy.module
        for name, reference in self.references.items():
            yield f"{name}.reference", reference.module
        for name, learner in self.learners.items():
            for key, module in learner.modules().items():
                yield f"{name}.{key}", module


def as_loaded(policy: Any) -> bool:
    """Whether the weights are those of the model folder that the recipe names, and stay so."""
    return policy.source is not None and not policy.trainable and policy.version == 0


def save_checkpoint(
    folder: RunFolder,
    step: int,
    state: RunState,
    *,
    counters: Mapping[str, float],
    keep: int,
    logs: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write a checkpoint, then remove the oldest ones so that `keep` remain.

    Args:
        logs: checksums of further logs, see `RunFolder.write_checkpoint`.

    Raises: RunFolderError, for instance on a full disk; the earlier checkpoints do not change then.
    """
    with folder.write_checkpoint(step, logs) as place:
        for name, module in state.modules:
            save_weights(_tensors(module), place / f"{name}.safetensors")
        for name, held in (*state.learners.items(), *state.others.items()):
            torch.save(unshared(on_cpu(held.state_dict())), place / f"{name}.state.pt")
        described = {
            name: {"version": policy.version, "architecture": policy.architecture()}
            | ({"weights": policy.source} if as_loaded(policy) else {})
            for name, policy in state.with_weights.items()
        }
        content = {"step": step, "counters": dict(counters), "policies": described, SUMS: True}
        if state.recipe:
            content["recipe"] = dict(state.recipe)
        if state.guard is not None:
            content["guard"] = state.guard.state_dict()
        if state.panel is not None:
            content["panel"] = state.panel.state_dict()
        (place / STATE).write_text(json.dumps(content, sort_keys=True, indent=1))
    folder.keep_checkpoints(keep)


def unshared(state: Any) -> Any:
    """A state in containers of its own, whose equal texts are one object, so that equal states become equal bytes.

    A file says which containers and texts are the same object. After `--resume` others are.
    """
    if type(state) is str:
        return sys.intern(state)
    if type(state) is dict:
        return {unshared(key): unshared(value) for key, value in state.items()}
    return type(state)(map(unshared, state)) if type(state) in (list, tuple) else state


def give_slices(state: RunState) -> None:
    """Give this process's slices of spread modules to `save_checkpoint`, which another process runs."""
    for _, module in state.modules:
        _tensors(module)
    for held in (*state.learners.values(), *state.others.values()):
        on_cpu(held.state_dict())


def load_checkpoint(place: Path, state: RunState) -> tuple[int, dict[str, float]]:
    """Load weights and states from a checkpoint. Returns the iteration and the counters.

    Raises: CheckpointError, for another architecture (another tokenizer included), or a damaged file.
    """
    written = read_state(place)
    for name, policy in state.with_weights.items():
        load_policy(place, name, policy)
    for name, module in state.modules:
        _load_module(module, place / f"{name}.safetensors")
    for name, held in (*state.learners.items(), *state.others.items()):
        file = place / f"{name}.state.pt"
        content = _read(_load_safely, file)
        with _fits(file):
            held.load_state_dict(content)
    with _fits(place / STATE):
        if state.guard is not None:
            state.guard.load_state_dict(written.get("guard", {}))
        if state.panel is not None:
            state.panel.load_state_dict(written.get("panel", {}))
    return int(written["step"]), dict(written["counters"])


def newest_intact(folder: RunFolder, *, logs: bool) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files match their checksums, and a line for each newer one that is passed over.

    A checkpoint of an earlier version has no checksums and is taken as it is. None: the run has no checkpoint.

    Args:
        logs: the logs must still begin as they were at the checkpoint, too, as for a run that continues.

    Raises: CheckpointError, if there are checkpoints and none of them can be used.
    """
    passed: list[str] = []
    for step in reversed(folder.checkpoint_steps()):
        place = folder.checkpoint(step)
        fault = damage(place) or (log_fault(place, folder.path, *DECISIVE) if logs else None)
        if fault is None:
            return place, passed
        passed.append(f"{place}: {fault}")
    if not passed:
        return None, []
    raise CheckpointError(
        where=str(folder.path),
        what="none of its checkpoints can be used.\n  " + "\n  ".join(passed),
        remedy="Copy the files back from where they are whole. Or start a new run: `--overwrite` replaces this one.\n"
        "If the weights are whole, `palaestra export` writes them, and `policies.main.load=FOLDER` starts with them.",
    )


def continued_from(folder: RunFolder, *, say: Callable[[str], object]) -> Path | None:
    """The newest checkpoint from which the run can continue, None without any. Newer ones are set aside.

    Args:
        say: gets a line for each checkpoint that is set aside, and one more.

    Raises: CheckpointError, if none of the checkpoints can be used, or if they are gone; RunFolderError, if a log
        cannot be read.
    """
    for name in DECISIVE:
        JsonLines(folder / name).refuse_unreadable()
    place, passed = newest_intact(folder, logs=True)
    done = len(read(folder / METRICS)) if place is None else 0
    if done:  # a run writes its first checkpoint before its first iteration
        raise CheckpointError(
            where=str(folder.path / CHECKPOINTS),
            what=f"the checkpoints are gone, and the run had done {done} iterations.",
            remedy="Copy them back, or start the run again with `--overwrite`.",
        )
    for line in passed:
        say(f"not used: {line}")
    if place is None:
        return None
    step = read_state(place)["step"]
    for name, rest in cut_logs(place, folder.path, *DECISIVE).items():  # a damaged line may have any number
        if not passed and not _follows(rest, step, name):
            say(f"{name}: what came after {place} is no later iteration; it is left out")
    if passed:
        folder.set_aside_after(step)
        say(f"continued from an earlier checkpoint, {place}; what came after it is done again")
    return place


def _follows(rest: bytes, step: int, name: str) -> bool:
    """Whether all whole lines are of later iterations. The first checkpoint comes before the evaluation of its step."""
    first = step if name == EVALUATIONS and step == 0 else step + 1
    try:
        return all(json.loads(line)[STEP] >= first for line in rest.split(b"\n")[:-1])
    except OF_OTHER_FORM:
        return False


def recipe_values(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Key of a resolved recipe → its value as JSON has it. The folders of a run do not count."""
    return {key: plain(entry["value"]) for key, entry in entries.items() if key not in ("run", "warm_start.keep")}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two resolved recipes: `training.iterations 100 -> 200`."""
    return differences(recipe_values(before), recipe_values(now))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of the values of two recipes, except for a token budget that one of them leaves to the run."""
    return [
        f"{key} {before.get(key)} -> {now.get(key)}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not (key == BUDGET and None in (before.get(key), now.get(key)))
    ]


def former_recipe(folder: RunFolder, place: Path, *, say: Callable[[str], object]) -> dict[str, Any]:
    """The values of the recipe at a checkpoint. Checkpoints of earlier versions lack them: then those of recipe.json.

    Args:
        say: gets a line, if recipe.json cannot be read.
    """
    try:
        there = recipe_values(folder.read_recipe())
    except RunFolderError as error:
        say(f"{error.where}: {error.what} It is written anew.")
        there = {}
    return dict(read_state(place).get("recipe", there))


def former_entry(folder: RunFolder, key: str) -> dict[str, Any]:
    """The entry of a key in recipe.json; empty, if it has none or cannot be read."""
    try:
        return folder.read_recipe().get(key, {})
    except RunFolderError:
        return {}


def damage(place: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None, if nothing is known to be."""
    try:
        promised = SUMS in read_state(place)
    except CheckpointError:
        return file_fault(place) or f"{STATE} cannot be read"
    return f"{SUMS} is missing" if promised and not (place / SUMS).exists() else file_fault(place)


def _load_module(module: torch.nn.Module, file: Path) -> None:
    tensors = _read(load_file, file)
    with _fits(file):
        load_weights(module, _with_tied(module, tensors))


@contextmanager
def _fits(file: Path) -> Iterator[None]:
    """A context in which the content of a file is given to its object. Raises: CheckpointError, if it does not fit."""
    try:
        yield
    except PalaestraError:
        raise
    except _UNFIT as error:
        raise CheckpointError(
            where=str(file),
            what=f"its content does not fit this recipe: {type(error).__name__}: {error}.",
            remedy="Resume with the recipe of the run (recipe.json in the run folder), or start a new run.",
        ) from error


def read_state(place: Path) -> dict[str, Any]:
    """The description of a checkpoint: iteration, counters and policies.

    Raises: CheckpointError, if the folder is no checkpoint, or its description lacks something.
    """
    try:
        written = json.loads((place / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(where=str(place), what=f"it is not a checkpoint: {error}.") from error
    wrong = _wrong_in(written)
    if wrong:
        raise CheckpointError(
            where=str(place / STATE),
            what=f"it is not the description of a checkpoint: {wrong}.",
            remedy="Copy the file back, or use another checkpoint.",
        )
    return dict(written)


def _wrong_in(written: Any) -> str:
    """What a description lacks; empty, if nothing."""
    if not isinstance(written, dict):
        return "it is no JSON object"
    kinds = {"step": (int,), "counters": (dict,), "policies": (dict,), "guard": (dict, type(None)), "panel": (dict,),
             "recipe": (dict,)}  # fmt: skip
    for key, kind in kinds.items():
        if key not in written and key in ("step", "counters", "policies"):
            return f"`{key}` is missing"
        if key in written and (not isinstance(written[key], kind) or isinstance(written[key], bool)):
            return f"`{key}` is a {type(written[key]).__name__}"
    for name, policy in written["policies"].items():
        if not isinstance(policy, dict) or not isinstance(policy.get("architecture"), dict):
            return f"policy `{name}` has no architecture"
        if not isinstance(policy.get("version"), int):
            return f"policy `{name}` has no version"
    numbers = written["counters"].values()
    return "" if all(isinstance(number, int | float) for number in numbers) else "a counter is no number"


def load_policy(place: Path, name: str, policy: Any) -> None:
    """Load the weights of one policy.

    Raises: CheckpointError, as `load_checkpoint`.
    """
    state = read_state(place)
    if name not in state["policies"]:
        raise CheckpointError(where=str(place), what=f"it holds no policy `{name}`.", options=sorted(state["policies"]))
    there, here = state["policies"][name]["architecture"], policy.architecture()
    if there != here:
        differing = [
            f"{key} {there.get(key)} there, {here.get(key)} here" for key in here if there.get(key) != here[key]
        ]
        raise CheckpointError(
            where=f"{place}, policy {name}",
            what=f"the checkpoint is of another architecture: {'; '.join(differing)}.",
            remedy="Resume with the recipe of the run (recipe.json in the run folder), or start a new run.",
        )
    if "weights" in state["policies"][name]:  # of a model folder, which the policy has loaded
        return
    _load_module(policy.module, place / f"{name}.safetensors")
    policy.weights_changed(int(state["policies"][name]["version"]))


def _read(load: Callable[[Path], Any], path: Path) -> Any:
    """The content of a file. Raises: CheckpointError, if the file is missing or damaged."""
    try:
        return load(path)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        raise CheckpointError(
            where=str(path),
            what=f"it cannot be read: {error}.",
            remedy="Remove the folder of this checkpoint; `--resume` then continues from the one before.",
        ) from error


def _load_safely(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state of a module as separate contiguous CPU tensors. Tied weights are written once."""
    tied = _tied(module)
    return {
        name: whole(tensor.detach()).to("cpu", copy=True).contiguous()
        for name, tensor in module.state_dict().items()
        if name not in tied
    }


def _tied(module: torch.nn.Module) -> dict[str, str]:
    """The further names of each parameter that has several → its first name."""
    first: dict[int, str] = {}
    names = [(name, first.setdefault(id(p), name)) for name, p in module.named_parameters(remove_duplicate=False)]
    return {name: other for name, other in names if name != other}


def _with_tied(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with tied weights under all their names, as `load_state_dict` needs it."""
    return state | {name: state[other] for name, other in _tied(module).items() if other in state}
