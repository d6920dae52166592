"""Playing team programs with scripted policies: one echo of one turn, or any environment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.data import Observation, Play, RunSetup, Trajectory
from palaestra.registry.bound import BoundPart, bind
from palaestra.rollout.programs import demonstration_of
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import EchoEnvironment, ScriptedPolicy

ECHO = functools.partial(EchoEnvironment, turns=1)
Answers = Sequence[str] | Callable[[int, Observation], str]


def told_word(seen: Observation) -> str:
    """What the echo asks for: `say red` → red."""
    return (seen.text or "").split()[1]


def right(turn: int, seen: Observation) -> str:
    return told_word(seen)


def play(
    program: Any,
    answers: Mapping[str, Any],
    *,
    count: int = 1,
    seed: int = 1,
    environment: Any = ECHO,
    roles: Mapping[str, Role] | None = None,
    options: Mapping[str, Any] | None = None,
    instead: Any = None,
    **settings: Any,
) -> list[Trajectory]:
    """Play `count` tasks.

    Args:
        answers: role → what it answers, a policy or answers for a scripted one.
        roles: further roles, in place of those made of answers.
        options: of the program. instead: played in its place: its demonstration.
    """
    made = {
        name: Role(policy=given if hasattr(given, "session") else ScriptedPolicy(given, name=name))
        for name, given in answers.items()
    }
    setup = RunSetup(
        environment_name="echo",
        make_environment=environment,
        roles={**made, **(roles or {})},
        program=functools.partial(program, **options) if options else program,
        environment_options={},
    )
    tasks = environment().tasks("train", count, seed)
    plays = [Play(task=task, group=f"{i:04d}", sample=0, seed=seed * 100_003 + i) for i, task in enumerate(tasks)]
    return EpisodeRunner(setup, RolloutSettings(**settings)).collect(plays, program=instead)


def demonstrated(
    program: Any,
    answers: Mapping[str, Any],
    *,
    noise: float = 0.0,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[Trajectory]:
    """Play the demonstration of a program whose options stand in a recipe."""
    bound = bind("program", BoundPart(name=program.part.name, options=dict(options or {})))
    return play(bound, answers, instead=functools.partial(demonstration_of(bound), noise=noise), **more)


def acts(played: Trajectory) -> list[tuple[str, str]]:
    """Who said what, in order."""
    return [(step.agent, step.action.text or "") for step in played.steps]


def shown_to(played: Trajectory, role: str) -> list[list[str]]:
    """What a role was shown, as lines below the environment's own."""
    return [(step.observation.text or "").split("\n")[1:] for step in played.steps if step.agent == role]
