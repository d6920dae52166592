"""The stage: everything episodes of one run share. Knows environments, roles and plays by protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.data import Task
from palaestra.data.protocols import AsyncEnvironment, Environment, Policy

Program = Callable[[Any], Awaitable[None]]  # async def program(episode: Episode) -> None


@dataclass(slots=True, kw_only=True)
class Role:
    """One name in an episode: the policy that plays it and the context through which it sees."""

    policy: Policy
    context: Any = None
    frozen: bool = False


@dataclass(slots=True, kw_only=True)
class Stage:
    """What a runner needs to play.

    Attributes:
        environment_name, environment_options: as in the recipe.
        make_environment: a fresh environment; picklable if workers are processes.
        roles: per role name; "*" is anybody else.
        program: who acts when.
    """

    environment_name: str
    make_environment: Callable[[], Environment | AsyncEnvironment]
    roles: Mapping[str, Role]
    program: Program
    environment_options: Mapping[str, Any]

    def role(self, agent: str) -> Role:
        """The role of this agent's name, else the role `*`."""
        return self.roles[agent] if agent in self.roles else self.roles["*"]


@dataclass(slots=True, kw_only=True, frozen=True)
class Play:
    """One episode to be played. Everything random in it derives from `seed`.

    Attributes:
        turns: most turns, in place of `rollout.max_turns`.
        instruction: said to every agent at the head of what it reads.
        info: JSON values for the trajectory's `info`.
        watch: called with the episode whenever the environment has answered and an agent is about to act; the
            episode waits for it. There, and only there, `episode.branch` makes the play of a branch.
        origin: where a branch begins.
    """

    task: Task
    group: str
    sample: int
    seed: int
    turns: int | None = None
    instruction: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    watch: Callable[[Any], Awaitable[None]] | None = None
    origin: Any = None
