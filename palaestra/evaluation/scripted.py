"""Scripted play: an environment's expert, or random acts, on given tasks; and one hash over whole episodes.

Knows environments by name, scripted policies and the runner. Knows nothing of training.
"""

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

EPISODES = 50  # that a panel's hash of whole episodes speaks of
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
    """One episode of each task, all roles played by one scripted policy.

    Args:
        policy: "expert" or "random". seed: of random acts.
        settings: limits and workers; default 200 turns, in the event loop.
        make: gives an environment; default the registered one.
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


# ---- sameness ---------------------------------------------------------------------------------------------
def episodes_hash(trajectories: Sequence[Trajectory]) -> str:
    """Equal iff all observations, actions, rewards and ends are equal, in the tasks' order."""
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
    """A JSON value; arrays as their rounded bytes' hash."""
    if isinstance(value, np.ndarray):
        return hashlib.sha256(np.round(value, 4).tobytes()).hexdigest()[:16]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def played_hash(entry: Panel, tasks: Sequence[Task], *, settings: RolloutSettings | None = None) -> str:
    """The hash over random play of a panel's first 50 tasks."""
    played = play_scripted(entry.environment, entry.options, "random", tasks[:EPISODES], settings=settings)
    return episodes_hash(played)


def verify_played(name: str, *, settings: RolloutSettings | None = None) -> Panel:
    """The committed panel `name`, after its tasks, first observations and random episodes were made again.

    Raises: InvalidData, if anything differs from what was committed.
    """
    entry = panels()[name]
    tasks = verified(name, entry, part("environment", entry.environment).target(**entry.options))
    found = played_hash(entry, tasks, settings=settings) if entry.played else ""
    if found != entry.played:
        raise InvalidData(
            where=f"panel {name}",
            what=f"the same seeds give other episodes: hash {found}, committed {entry.played}.",
            remedy="Results could not be compared with earlier ones. Install the package versions of constraints.txt,\n"
            "or find what is random beside the task's seed: sets, hash(), global generators, the clock.",
        )
    return entry
