"""Pins: short runs whose weights, metrics and trajectories must not change unless PINS.md says why.

    python tests/pins/record.py              compare with tests/pins/expected; exit 1 if anything differs
    python tests/pins/record.py NAME …       only these runs
    python tests/pins/record.py --write      write what is seen now

A hash is only comparable on the kind of processor that made it: floating-point sums round differently elsewhere. On
another processor `check` compares the numbers themselves to four digits. To hold two trees against each other on one
machine, run `--write` in the older tree and copy its `expected` folder.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("MPLBACKEND", "agg")

import argparse
import hashlib
import json
import math
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import palaestra.training.loop as loop
from palaestra import registry
from palaestra.catalogue import studies, systems
from palaestra.catalogue.studies import DEFAULT_SETUP
from palaestra.errors import PalaestraError
from palaestra.recipe import load, packaged, split_arguments
from palaestra.replay.packing import unpack
from palaestra.training.start import train

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXPECTED = HERE / "expected"
SMALL = (
    "training.iterations=3",
    "training.threads=1",
    "training.checkpoint_every=null",
    "training.save_episodes=4",
    "evaluation.tasks=4",
    "evaluation.every=1",
    "evaluation.environment=null",
    "evaluation.panel=null",
    "rollout.workers=0",
)
WARM = ("warm_start.episodes=48", "warm_start.epochs=4")
TASKS = "rollout.tasks=8"
DIGITS = 4  # that must agree on another processor


def recipe_of(name: str) -> Any:
    """The resolved recipe of one pin."""
    files, overrides = split_arguments(pins()[name])
    written = {text.partition("=")[0] for text in overrides}
    small = [text for text in (*SMALL, TASKS) if text.partition("=")[0] not in written]
    recipe = load(files, [*small, *overrides])
    warm = [text for text in WARM if text.partition("=")[0] not in written]
    return recipe.with_overrides(warm) if recipe.settings.warm_start is not None else recipe


def pins() -> dict[str, list[str]]:
    """Name → layers and overrides."""
    found: dict[str, list[str]] = yaml.safe_load((HERE / "recipes.yaml").read_text(encoding="utf-8"))
    return found


def run(name: str) -> dict[str, Any]:
    """Train one pin in a folder of its own; what it left, as hashes and as numbers."""
    played: list[Any] = []
    count = loop.Trainer.count

    def note(trainer: Any, trajectories: Iterable[Any]) -> None:
        played.extend(trajectories)
        count(trainer, trajectories)

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(name).with_overrides([f"run={folder}/run"])
        loop.Trainer.count = note  # type: ignore[method-assign]
        try:
            line = train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        finally:
            loop.Trainer.count = count  # type: ignore[method-assign]
        run_folder = Path(folder) / "run"
        lines = {
            log: [_without_time(json.loads(text)) for text in (run_folder / log).read_text().splitlines()]
            for log in ("metrics.jsonl", "evaluations.jsonl")
        }
        weights = dict(_weights(sorted((run_folder / "checkpoints").iterdir())[-1]))
    if recipe.settings.training.max_staleness:  # which weights played an episode depends on the clock: counts only
        return {
            "lines": {log: len(records) for log, records in lines.items()},
            "updates": [record["updates"] for record in lines["metrics.jsonl"]],
            "finished": [record["rollout/finished"] for record in lines["metrics.jsonl"]],
            "weights": sorted(weights),
        }
    return {
        "line": line.splitlines()[-1],
        "weights": {key: _digest([value]) for key, value in weights.items()},
        "norms": {key: _norm(value) for key, value in weights.items()},
        "metrics": lines["metrics.jsonl"],
        "evaluations": lines["evaluations.jsonl"],
        "trajectories": _digest(_of_trajectories(played)),
        "tokens": sum(len(step.action.tokens) for t in played for step in t.steps),
    }


def _without_time(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith(("time/", "queue/"))}


def _with_tied(state: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a file with the tied head under both its names, as earlier versions wrote it."""
    tied = {
        name.replace("model.embed_tokens.", "lm_head."): tensor
        for name, tensor in state.items()
        if name.endswith("model.model.embed_tokens.weight")
    }
    return dict(sorted((tied | state).items()))


def _weights(place: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor and number of a checkpoint, file by file."""
    from safetensors.torch import load_file

    for path in sorted(place.iterdir()):
        if path.suffix == ".safetensors":
            yield path.name, _with_tied(load_file(path))
        elif path.suffix == ".pt":
            state = torch.load(path, weights_only=True)
            if path.name.startswith("learner."):
                for name, of_policy in state.items():
                    yield f"{name}.optimizer.pt", of_policy["optimizer"]  # as earlier versions wrote it
                continue
            if isinstance(state, dict) and "episodes" in state:  # stored with the seconds that each step took
                state["episodes"] = list(_of_trajectories(unpack(state["episodes"])))
            if state != {}:  # an object without state writes a file, or none
                yield path.name, state


def _of_trajectories(played: Iterable[Any]) -> Iterator[Any]:
    """What was played, field by field, in the order of groups: names of fields may change, their values may not."""
    for t in sorted(played, key=lambda t: (t.group, t.sample)):
        yield [t.task.env, t.task.seed, t.group, t.sample, t.outcome, dict(t.returns), t.stop.value]
        for s in t.steps:
            yield [s.agent, s.turn, s.policy, s.version, s.segment, s.reward, s.terminated, s.truncated, s.prompt]
            yield [s.observation.text, s.observation.vector, s.observation.legal, s.observation.state_key]
            yield [s.action.text, s.action.value, s.action.tokens, s.action.logprobs, s.action.finish.value]


def _digest(values: Iterable[Any]) -> str:
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy() if value.dtype != torch.bfloat16 else value.float().numpy()
        if isinstance(value, np.ndarray):
            sha.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                sha.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            sha.update(f"[{len(value)}".encode())
            for item in value:
                add(item)
        else:
            sha.update(repr(value).encode())

    for value in values:
        add(value)
    return sha.hexdigest()[:16]


def _norm(value: Any) -> float:
    """Root of the sum of squares of every number in it."""
    if isinstance(value, torch.Tensor):
        return float(value.double().square().sum().sqrt())
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return math.sqrt(sum(_norm(item) ** 2 for item in value))
    return float(abs(value)) if isinstance(value, int | float) and math.isfinite(value) else 0.0


# ---- what parts and recipes say ---------------------------------------------------------------------------
def options() -> dict[str, dict[str, str]]:
    """`slot:name` → option → type and default, of every registered part."""
    found = {}
    for slot in registry.SLOTS:
        for name in registry.names(slot):
            try:
                fields = registry.part(slot, name).options.model_fields
            except ImportError:
                continue  # an extra that is not installed
            found[f"{slot}:{name}"] = {key: repr(field.default) for key, field in fields.items()}
    return found


def explained() -> dict[str, str]:
    """Packaged recipe → hash of what `explain` prints of it, without the names of files; overlays on a setup."""
    setups = _setups()
    found = {}
    for name in packaged():
        layers = [setups[name], name] if name in setups else [name]
        try:
            text = load(layers).explain()
        except PalaestraError as error:
            text = error.render()
        found[name] = _digest([re.sub(r"[\w./-]+\.yaml", "", text)])
    return found


def _setups() -> dict[str, str]:
    """Overlay of a system → the setup of the first study that has it as an arm."""
    found: dict[str, str] = {}
    for study in studies(ROOT):
        for arm in study.arms.values():
            found.setdefault(arm[0], study.setup)
    overlays = [system.overlay for system in systems() if system.overlay is not None]
    return {overlay: found.get(overlay, DEFAULT_SETUP) for overlay in overlays}


# ---- compare ----------------------------------------------------------------------------------------------
def machine() -> str:
    """What decides how sums round: the processor, its widest instructions, and torch."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.*)", info.read_text()) if info.exists() else None
    widest = torch.backends.cpu.get_cpu_capability()  # different processors may have one name in virtual machines
    return f"{model[1] if model else platform.processor()}, {widest}, torch {torch.__version__}"


def differences(expected: Any, found: Any, *, exact: bool, place: str = "") -> Iterator[str]:
    """Every place at which two records differ."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}, key=str):
            if not exact and key in ("weights", "trajectories"):
                continue
            if key not in expected or key not in found:
                yield f"{place}/{key}: {'gone' if key in expected else 'new'}"
            else:
                yield from differences(expected[key], found[key], exact=exact, place=f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, exact=exact, place=f"{place}/{number}")
    elif isinstance(expected, float) and isinstance(found, int | float) and not exact:
        if not math.isclose(expected, found, rel_tol=10**-DIGITS, abs_tol=10**-DIGITS):
            yield f"{place}: {expected} expected, {found} found"
    elif expected != found and not (expected != expected and found != found):
        yield f"{place}: {expected} expected, {found} found"


def _read(name: str) -> Any:
    path = EXPECTED / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(name: str, content: Any) -> None:
    EXPECTED.mkdir(exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (EXPECTED / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Check or write; the number of records that differ is the exit status, at most 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="runs, or `options`, `explain`; default all")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    os.chdir(ROOT)  # pay.py is named from here
    torch.set_num_threads(1)
    wanted = arguments.names or [*pins(), "options", "explain"]
    made = {"options": options, "explain": explained}
    exact = arguments.write or _read("machine").get("machine") == machine()
    if not exact:
        print(f"expected on {_read('machine').get('machine')}; this is {machine()}: numbers to {DIGITS} digits")
    wrong = 0
    for name in wanted:
        started = time.perf_counter()
        try:
            found = json.loads(json.dumps(made[name]() if name in made else run(name)))
        except PalaestraError as error:
            found = {"error": error.render()}
        if arguments.write:
            _write(name, found)
        faults = [] if arguments.write else list(differences(_read(name), found, exact=exact))
        wrong += bool(faults)
        faults += [found["error"]] if "error" in found else []
        wrong += arguments.write and bool(faults)
        shown = "written" if arguments.write else f"{len(faults)} differences" if faults else "as pinned"
        print(f"{name:<20} {shown:<16} {time.perf_counter() - started:5.1f} s", flush=True)
        for fault in faults[:8]:
            print(f"    {fault}")
    if arguments.write and {*pins()} <= {*wanted}:  # the numbers of all runs are this machine's
        _write("machine", {"machine": machine()})
    print(f"{wrong} of {len(wanted)} pins differ" if wrong else f"{len(wanted)} pins hold")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
