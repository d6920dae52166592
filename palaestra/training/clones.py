"""Clones: weights after a warm start, kept so that runs which begin alike need not clone again."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

import palaestra
from palaestra.errors import CheckpointError
from palaestra.models.devices import on_cpu
from palaestra.store.atomic import write_atomic
from palaestra.training.settings import RunSettings

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
    contents = dict(_contents(chosen))
    written = [palaestra.__version__, torch.__version__, chosen, *([contents] if contents else [])]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:20]


# ---- what settings name, and do not say -------------------------------------------------------------------
def _contents(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """What the files and model folders hold that settings name: text of the setting → a hash of the content."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _contents(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _contents(inner, key)
    elif isinstance(value, str):
        file = _own_file(value) if key == "name" else value
        if os.path.isfile(file):
            yield value, _hash_of(Path(file))
        elif key in FOLDERS and os.path.isdir(file):
            inside = sorted(path for path in Path(file).rglob("*") if path.is_file())
            listed = [[path.relative_to(file).as_posix(), path.stat().st_size, _hash_of(path)] for path in inside]
            yield value, hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _own_file(name: str) -> str:
    """The file of a part of one's own, `path/to/file.py:attribute` or `module:attribute`; empty for others."""
    place, colon, _ = name.rpartition(":")
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
