"""Warm start: clone the environment's expert before reinforcement learning.

Demonstrations are played through the policy's own context, so that it learns on exactly the ids it will
meet; only the expert's tokens have loss.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

import palaestra
from palaestra.bound import BoundPart
from palaestra.data import Play, RunSetup, StopReason, Task, Trajectory, derive, rows_of
from palaestra.data.abilities import HasTasks, has
from palaestra.data.batches import micro_batches
from palaestra.errors import CheckpointError, NoSignal, RecipeError
from palaestra.models.devices import on_cpu
from palaestra.own_files import neighbors
from palaestra.registry import Section
from palaestra.rollout.programs import demonstration_of
from palaestra.store.atomic import write_atomic
from palaestra.training.policy_gradient import make_optimizer
from palaestra.training.settings import RunSettings, WarmStartSettings


def warm_start(
    setup: RunSetup, settings: WarmStartSettings, *, seed: int, say: Callable[[str, int, int], None]
) -> dict[str, float]:
    """Behavior cloning of every trainable policy that acts in demonstrations; of frozen ones too, if asked.

    What stands on a base that is cloned adds its demonstrations to the base's and is not cloned itself: it starts as
    the base, which has learned what all of them need.

    Args:
        say: told (what, done, of) as it goes.

    Returns: final metrics: loss and share of expert tokens that the policy would choose.
    Raises: RecipeError, if the environment has no expert, or no teacher to be guided by; NoSignal, if every
        demonstration failed.
    """
    source = setup.source
    if not has(source, "expert"):
        raise RecipeError(
            where="warm_start",
            what=f"environment `{setup.environment_name}` has no expert to clone.",
            remedy="Leave `warm_start` out, or give the environment a method `expert(agent) -> Action`.",
        )
    plays = [
        Play(task=task, group=f"demonstration-{i:05d}", sample=0, seed=derive(seed, "demonstration", i))
        for i, task in enumerate(demonstrated(source, settings, seed=seed))
    ]
    plays = _guided(plays, setup, share=settings.guidance)
    say("demonstrations", 0, len(plays))
    program = functools.partial(demonstration_of(setup.program), noise=settings.noise)
    played = setup.runner.collect(plays, program=program)
    finished = [t for t in played if t.stop is not StopReason.ERROR and t.steps]
    if not finished:
        first = next((t.error.message for t in played if t.error), "no episode had a step")
        raise NoSignal(where="warm_start", what=f"all {len(played)} demonstrations failed. The first:\n{first}")
    metrics: dict[str, float] = {"warm_start/demonstrations": float(len(finished))}
    for name, members in _cloned_together(setup.policies, frozen=settings.frozen).items():
        policy, rows = setup.policies[name], [row for row in rows_of(finished) if row.step.policy in members]
        if rows and (policy.trainable or (settings.frozen and policy.module is not None)):
            metrics_of_policy = _clone(policy, rows, settings, seed=derive(seed, "cloning", name), say=say)
            metrics |= {f"warm_start/{name}/{key}": value for key, value in metrics_of_policy.items()}
            for member in members:
                setup.policies[member].weights_changed(setup.policies[member].version + 1)
    return metrics


def demonstrated(source: HasTasks, settings: WarmStartSettings, *, seed: int) -> list[Task]:
    """The tasks that the expert demonstrates."""
    return source.tasks("train", settings.episodes, derive(seed, "demonstrations"))


def _cloned_together(policies: Mapping[str, Any], *, frozen: bool) -> dict[str, list[str]]:
    """Who learns from whose demonstrations: each from its own, and a base that is cloned from those of all above it."""
    bases = {name: policy.base if frozen else None for name, policy in policies.items()}
    return {
        name: [name, *(other for other, base in bases.items() if base == name)]
        for name, base in bases.items()
        if base is None
    }


def _guided(plays: list[Play], setup: RunSetup, *, share: float) -> list[Play]:
    """A share of the plays under what the environment's teacher says before a first attempt."""
    if share > 0 and not has(setup.source, "guidance"):
        raise RecipeError(
            where="warm_start.guidance",
            what=f"environment `{setup.environment_name}` has no teacher.",
            remedy="Set it to 0, or give the environment the ability `guidance`: `guidance(trajectory, *, seed)` and "
            "`reference(task)`.",
        )
    guided = []
    for play in plays:
        draw = np.random.default_rng(derive(play.seed, "guidance"))
        if draw.random() < share:
            attempt = Trajectory(task=play.task, group=play.group)
            text = setup.source.guidance(attempt, seed=derive(play.seed, "guidance"))
            play = dataclasses.replace(play, instruction=text or None)
        guided.append(play)
    return guided


def _clone(
    policy: Any, rows: list[Any], settings: WarmStartSettings, *, seed: int, say: Callable[[str, int, int], None]
) -> dict[str, float]:
    samples = policy.collate(rows, temperature=1.0)
    taught = _taught_tokens(rows)
    batches = micro_batches(samples.cost, range(len(samples.cost)), budget=settings.batch_tokens)
    optimizer = make_optimizer(settings.optimizer, policy.module)
    losses: list[float] = []
    steps = settings.epochs * len(batches)
    policy.module.train()
    for epoch in range(settings.epochs):
        for place in np.random.default_rng(derive(seed, epoch)).permutation(len(batches)):
            which = batches[int(place)]
            index = torch.from_numpy(_tokens(samples, which))
            now = policy.forward(samples, which, ("logprob",))
            weight = taught[index].to(now["logprob"].device)
            loss = -(weight * now["logprob"]).sum() / weight.sum().clamp_min(1.0)
            optimizer.zero()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            say("cloning", len(losses), steps)
    policy.module.eval()
    last = losses[-len(batches) :]
    return {"loss": float(np.mean(last))}


def _taught_tokens(rows: list[Any]) -> torch.Tensor:
    """1 on response tokens of the expert, 0 on those of random acts; in the table's flat token order."""
    last = rows[-1]
    weight = torch.zeros(last.start + max(len(last.step.action.tokens), 1))
    for row in rows:
        width = max(len(row.step.action.tokens), 1)
        weight[row.start : row.start + width] = 1.0 - float(row.step.marks.noise or 0.0)
    return weight


def _tokens(samples: Any, which: list[int]) -> np.ndarray:
    start = samples.token_start
    return np.concatenate([samples.token_index[start[i] : start[i + 1]] for i in which])


# ---- clones that are kept -------------------------------------------------------------------------------
# What a warm start does not see: it comes before all of this. Strategies are not here: a tokenizer reads what they say.
AFTERWARDS = {"name", "run", "engine", "experience", "reward", "selection", "advantage", "weights", "learner"}
AFTERWARDS |= {"loss", "aggregate", "regularizers", "optimizer", "training", "evaluation", "sampler", "reference"}
AFTERWARDS |= {"strict"}
OF_ROLLOUTS = {"tasks", "group", "in_flight", "temperature", "top_k", "top_p", "window"}
OF_POLICIES = {"optimizer", "loss", "regularizers", "epochs", "minibatches", "every", "reference"}
FOLDERS = {"model", "load"}  # settings and options that name a folder of weights
OF_AGENTS = {"frozen", "temperature", "top_k", "top_p", "response_tokens"}


class Clones:
    """The weights of one recipe's warm start, in a folder that several runs share.

    Args:
        folder: made if it is missing.
        settings: of the run; whatever decides the clones decides the name of their file: the settings themselves, and
            the content of files of one's own, data files and model folders that they name.
    """

    def __init__(self, folder: str, settings: RunSettings) -> None:
        self.path = Path(folder) / f"{_digest(settings)}.pt"

    def restore(self, policies: Mapping[str, Any]) -> bool:
        """Put the kept weights into the policies; False if there are none yet.

        Raises: CheckpointError, for a file that cannot be read.
        """
        if not self.path.exists():
            return False
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            for name, policy in _learners(policies).items():
                policy.module.load_state_dict(kept[name]["weights"])
                policy.weights_changed(int(kept[name]["version"]))
        except (OSError, RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
            raise CheckpointError(
                where=str(self.path),
                what=f"it holds no clones for this run: {type(error).__name__}.",
                remedy="Remove the file.",
            ) from error
        return True

    def keep(self, policies: Mapping[str, Any]) -> None:
        """Write the weights of all policies, all at once."""
        content = {
            name: {"weights": on_cpu(policy.module.state_dict()), "version": policy.version}
            for name, policy in _learners(policies).items()
        }
        write_atomic(self.path, lambda file: torch.save(content, file))


def _learners(policies: Mapping[str, Any]) -> dict[str, Any]:
    return {name: policy for name, policy in policies.items() if policy.module is not None}


def _digest(settings: RunSettings) -> str:
    """A name for everything that a warm start depends on."""
    chosen = settings.model_dump(mode="json", exclude=AFTERWARDS)  # type: ignore[arg-type]
    chosen["rollout"] = {key: value for key, value in chosen["rollout"].items() if key not in OF_ROLLOUTS}
    chosen["policies"] = {
        name: {key: value for key, value in policy.items() if key not in OF_POLICIES}
        for name, policy in chosen["policies"].items()
    }
    chosen["agents"] = {
        name: {key: value for key, value in role.items() if key not in OF_AGENTS}
        for name, role in chosen["agents"].items()
    }
    if chosen["warm_start"] is not None:
        chosen["warm_start"].pop("keep")
    contents = dict(_contents(chosen, _own_files(settings)))
    written = [palaestra.__version__, torch.__version__, chosen, *([contents] if contents else [])]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:20]


# ---- what settings name, and do not say -------------------------------------------------------------------
def _contents(value: Any, own: Mapping[str, str], key: str = "") -> Iterator[tuple[str, str]]:
    """What the files and model folders hold that settings name: text of the setting → a hash of the content.

    Args:
        own: names of parts in files of one's own → their files; what such a file imports beside it counts, too.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _contents(inner, own, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _contents(inner, own, key)
    elif isinstance(value, str):
        file = _own_file(value, own) if key == "name" else value
        if os.path.isfile(file):
            yield value, _hash_of(Path(file))
            beside = neighbors(file) if value in own else []
            yield from ((f"{value} {os.path.basename(other)}", _hash_of(Path(other))) for other in beside)
        elif key in FOLDERS and os.path.isdir(file):
            inside = sorted(path for path in Path(file).rglob("*") if path.is_file())
            listed = [[path.relative_to(file).as_posix(), path.stat().st_size, _hash_of(path)] for path in inside]
            yield value, hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _own_files(value: Any) -> dict[str, str]:
    """The bound parts of settings that are in files of one's own: name → file."""
    if isinstance(value, BoundPart):
        return {value.name: value.file} if value.file else {}
    if isinstance(value, Section):
        return _own_files([getattr(value, name) for name in type(value).model_fields])
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return {name: file for one in inner for name, file in _own_files(one).items()}


def _own_file(name: str, own: Mapping[str, str]) -> str:
    """The file of a part of one's own, `path/to/file.py:attribute` or `module:attribute`; empty for others."""
    place, colon, _ = name.rpartition(":")
    if name in own:
        return own[name]
    if not colon or place.endswith(".py"):
        return place
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return ""
    return str(spec.origin) if spec is not None else ""


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
