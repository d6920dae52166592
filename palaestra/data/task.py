"""Tasks: what an environment is asked to set up. Knows nothing of policies or trajectories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True, frozen=True)
class Task:
    """One problem instance.

    Attributes:
        env: name of the environment, as in the registry.
        params: what `reset` needs beside the seed; JSON values only.
        seed: the environment's own random seed.
        key: a durable name given by the environment, if it has one.
        split: "train", "eval", … a label; it does not change `content_hash`.
        difficulty: a label for curricula; likewise.
    """

    env: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    split: str = "train"
    difficulty: float | None = None

    @property
    def content_hash(self) -> str:
        """Equal for the same problem whatever its split, so that leakage can be seen."""
        content = json.dumps([self.env, dict(self.params), self.seed], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True, frozen=True)
class Assignment:
    """A task and how an iteration plays it: what a sampler gives. None leaves a limit to `rollout`.

    Attributes:
        samples: trajectories of its group. turns: most turns of each.
        instruction: said to every agent at the head of what it reads.
        info: JSON values for the `info` of each trajectory.
    """

    task: Task
    samples: int | None = None
    turns: int | None = None
    instruction: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, chosen: Task | Assignment) -> Assignment:
        """A bare task, played as `rollout` says; an assignment as it is."""
        return chosen if isinstance(chosen, Assignment) else cls(task=chosen)


def panel_hash(tasks: list[Task]) -> str:
    """One hash over a panel of tasks, order included; committed next to the panel's definition."""
    return hashlib.sha256("\n".join(task.content_hash for task in tasks).encode()).hexdigest()[:16]
