"""Clones: weights after a warm start, kept so that runs which begin alike need not clone again.

Knows which settings decide a warm start. Knows no policy by name and nothing of what follows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
AFTERWARDS = {"name", "run", "reward", "selection", "advantage", "weights", "loss", "aggregate", "regularizers"}
AFTERWARDS |= {"optimizer", "training", "evaluation", "sampler", "reference", "strict"}
OF_ROLLOUTS = {"tasks", "group", "in_flight", "temperature", "top_k", "top_p", "window"}
OF_POLICIES = {"optimizer", "loss", "regularizers", "epochs", "minibatches", "every", "reference"}
OF_AGENTS = {"frozen", "temperature", "top_k", "top_p", "response_tokens"}


class Clones:
    """The weights of one recipe's warm start, in a folder that several runs share.

    Args:
        folder: made if it is missing.
        settings: of the run; whatever decides the clones decides the name of their file.
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
    return {name: policy for name, policy in policies.items() if hasattr(policy, "module")}


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
    text = json.dumps([palaestra.__version__, torch.__version__, chosen], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
