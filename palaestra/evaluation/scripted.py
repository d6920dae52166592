"""Plays given tasks with an environment's expert or with random acts, and computes one hash over whole episodes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.data import Observation, Play, RunSetup, Task, Trajectory, derive
from palaestra.data.abilities import sizes_of
from palaestra.envs.kit.panels import Panel, panels, verified
from palaestra.errors import InvalidData
from palaestra.registry import part
from palaestra.rollout.roles import Role
from palaestra.rollout.settings import RolloutSettings

EPISODES = 50  # first episodes of a panel, over which its hash is computed
TURNS = 200


def play_scripted(
    environment: str,
    options: Mapping[str, Any],
    policy: str,
    tasks: Sequence[Task],
    *,
    seed: int = 0,
    settings: RolloutSettings | None = None,
    make: Callable[[], Any] | None = None,
) -> list[Trajectory]:
    """Play one episode of each task. One scripted policy plays all roles.

    Args:
        environment, options: the registered name and the options of the environment.
        policy: "expert" or "random".
        seed: of random acts.
        settings: limits and workers; default: at most 200 turns, in the event loop.
        make: makes the environment; default: the registered one with `options`.
    """
    make = make or functools.partial(part("environment", environment).target, **options)
    source = make()
    setup = RunSetup(
        seed=seed,
        source=source,
        action_count=sizes_of(source)[1],
        environment_name=environment,
        make_environment=make,
        program=part("program", "play").target,
        environment_options=options,
    )
    setup.roles = {"*": Role(policy=part("policy", policy).target(policy, setup))}
    runner = part("rollout", "episodes").target(setup, settings or RolloutSettings(max_turns=TURNS))
    plays = [
        Play(task=task, group=f"{policy}-{number:05d}", sample=0, seed=derive(seed, policy, task.content_hash))
        for number, task in enumerate(tasks)
    ]
    try:
        played: list[Trajectory] = runner.collect(plays)
    finally:
        runner.close()
    return played


# ---- hashes -----------------------------------------------------------------------------------------------
def episodes_hash(trajectories: Sequence[Trajectory]) -> str:
    """A hash of all observations, actions, rewards and ends, in the order of the tasks.

    Raises: InvalidData, if an episode failed.
    """
    digest = hashlib.sha256()
    for trajectory in sorted(trajectories, key=lambda one: (one.group, one.sample)):
        if trajectory.error is not None:
            raise InvalidData(where=f"episode {trajectory.group}", what=f"it failed:\n{trajectory.error.message}")
        for step in trajectory.steps:
            act = [step.agent, _shown(step.action.value), round(float(step.reward), 6), step.terminated, step.truncated]
            digest.update(f"{_seen(step.observation)}\n{json.dumps(act)}\n".encode())
        digest.update(f"{trajectory.stop.value} {trajectory.outcome}\n".encode())
    return digest.hexdigest()[:16]


def _seen(seen: Observation) -> str:
    shown = [_shown(value) for value in (seen.vector, seen.image) if value is not None]
    legal = None if seen.legal is None else [str(choice) for choice in seen.legal]
    return json.dumps([seen.text, [dict(message) for message in seen.messages or ()], shown, legal], sort_keys=True)


def _shown(value: Any) -> Any:
    """A JSON value. An array becomes a hash of its rounded numbers."""
    if isinstance(value, np.ndarray):
        return hashlib.sha256(np.round(value, 4).tobytes()).hexdigest()[:16]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def played_hash(entry: Panel, tasks: Sequence[Task], *, settings: RolloutSettings | None = None) -> str:
    """Play the first 50 tasks of a panel at random. Returns the hash of the episodes."""
    played = play_scripted(entry.environment, entry.options, "random", tasks[:EPISODES], settings=settings)
    return episodes_hash(played)


def verify_played(name: str, *, settings: RolloutSettings | None = None) -> Panel:
    """Make the tasks, first observations and random episodes of a panel again, and compare them with its hashes.

    Returns: the panel.
    Raises: InvalidData, if anything differs.
    """
    entry = panels()[name]
    tasks = verified(name, entry, part("environment", entry.environment).target(**entry.options))
    found = played_hash(entry, tasks, settings=settings) if entry.played else ""
    if found != entry.played:
        raise InvalidData(
            where=f"panel {name}",
            what=f"the same seeds give other episodes: the hash is {found}, and the committed one is {entry.played}.",
            remedy="Results could not be compared with earlier ones. Install the package versions of constraints.txt,\n"
            "or find what depends on more than the task's seed: sets, hash(), global generators, the clock.",
        )
    return entry
