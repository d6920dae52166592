"""Tasks: what an environment is asked to set up. Plays: how an episode of a task is played."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def content_digest(env: str, content: Any) -> str:
    """The hash of a problem of an environment, 16 hexadecimal digits; `content` is JSON values."""
    text = json.dumps([env, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True, frozen=True)
class Task:
    """One problem instance.

    Attributes:
        env: name of the environment, as in the registry.
        params: what `reset` needs beside the seed; JSON values only.
        seed: the environment's own random seed.
        key: a durable name given by the environment, if it has one.
        split: "train", "eval", … a label; it does not change `content_hash`.
        difficulty: a label for curricula, where it is known without work; likewise. Other environments have the ability
            `difficulty`.
        content: hash of what the agents see and what solves it, by `content_digest`, where the environment draws its
            tasks by content: another seed may make the same problem.
    """

    env: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    split: str = "train"
    difficulty: float | None = None
    content: str | None = None

    @property
    def content_hash(self) -> str:
        """Equal for the same problem whatever its split: `content`, else a hash of environment, params and seed."""
        if self.content is not None:
            return self.content
        text = json.dumps([self.env, dict(self.params), self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True, frozen=True)
class Play:
    """One episode to be played; as a sampler gives it, a whole group of them.

    A sampler says the task and how it is played. The run makes `samples` plays of it, and gives each its group, sample
    and seed.

    Attributes:
        task: what is played.
        group: trajectories of equal group are compared; one task instance, one group. sample: index inside the group.
        seed: everything random in the episode derives from it.
        samples: of its group; None: as many as `rollout.group`.
        turns: most turns, in place of `rollout.max_turns`.
        instruction: said to every agent at the head of what it reads.
        info: JSON values for the trajectory's `info`.
        roles: who plays whom: an agent's name → the role of the run that takes its part in this episode.
        branch: where the episode leaves another one, and who may leave it: a `rollout.branches.Branch`; None: it is
            played by itself.
    """

    task: Task
    group: str = ""
    sample: int = 0
    seed: int = 0
    samples: int | None = None
    turns: int | None = None
    instruction: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    branch: Any = None

    @classmethod
    def of(cls, chosen: Task | Play) -> Play:
        """A bare task, played as `rollout` says; a play as it is."""
        return chosen if isinstance(chosen, Play) else cls(task=chosen)
