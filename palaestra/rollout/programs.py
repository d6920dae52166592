"""Programs say which agent acts when. A program may declare its roles and its demonstration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.data import Action, Observation, ToolCall, derive
from palaestra.errors import ContractError
from palaestra.registry import declared, register
from palaestra.rollout.episode import Agent, Episode, Shown
from palaestra.rollout.results import no_observation

Program = Callable[[Episode], Awaitable[None]]
Decorated = Any  # a program, which may have attributes


def acted_by(*roles: str | Callable[[Mapping[str, Any]], Sequence[str]]) -> Callable[[Decorated], Decorated]:
    """Decorate a program with the names of its roles, or with a function of its options that gives them.

    Without this decorator the roles are the environment's agents. With it, a run refuses at its start a role without a
    policy, a policy without a role and a misspelled role. It stands below `@register`.
    """

    def decorate(program: Decorated) -> Decorated:
        program.roles = roles
        return program

    return decorate


@register("program", "play")
@acted_by()
async def play(episode: Episode) -> None:
    """The agents for whom the environment has an observation act, until there is no observation."""
    result = await episode.reset()
    if not result.observations:
        raise no_observation(episode.setup.environment_name)
    while result.observations:
        shown = result.observations
        actions = {name: await episode.agents[name].act(observation) for name, observation in shown.items()}
        result = await episode.step(actions)


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """The environment's expert acts for all agents. A share `noise` of the acts is random instead.

    Random acts are recorded, too, with the mark `noise`. Behavior cloning does not imitate them, but it learns the
    expert's answers to the states after them.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    result = await episode.reset()
    while result.observations:
        actions: dict[str, Action] = {}
        for name, observation in result.observations.items():
            action, is_random = await expert_or_random(episode, name, observation, noise=noise, draw=draw)
            actions[name] = episode.agents[name].record(observation, action, noise=float(is_random))
        result = await episode.step(actions)


async def expert_or_random(
    episode: Episode, name: str, observation: Observation, *, noise: float, draw: np.random.Generator
) -> tuple[Action, bool]:
    """The expert's action, or with probability `noise` a legal one at random; and whether it is random."""
    if noise > 0 and observation.legal is not None and len(observation.legal) > 0 and draw.random() < noise:
        choice = observation.legal[int(draw.integers(len(observation.legal)))]
        return Action(text=str(choice), value=choice), True
    return await episode.expert(name), False


async def record_call(agent: Agent, shown: Shown, name: str, **arguments: Any) -> Observation:
    """In a demonstration, let the agent make this tool call. The tool runs.

    Returns: the observation with the result, for the agent's next act.
    Raises: ContractError, if its role has no such tool.
    """
    tools = agent.tools
    if tools is None or name not in tools.toolbox.tools:
        raise ContractError(
            where=f"demonstration, role {agent.name}",
            what=f"it calls the tool `{name}`, which its role does not have.",
            options=list(tools.toolbox.tools) if tools is not None else [],
            remedy=f"Write `agents: {{{agent.name}: {{tools: {{use: [{name}]}}}}}}`.",
        )
    observation = Observation(text=shown, state_key=shown) if isinstance(shown, str) else shown
    call = ToolCall(name=name, arguments=arguments)
    said = tools.write(call)
    agent.record(observation, Action(text=said, value=said, tool_calls=(call,) if tools.native else ()))
    assert agent.last is not None
    with agent.episode.busy():
        results = await tools.call([call], agent.last)
    return tools.shown(observation, said, results)


def demonstrated_by(demonstration: Program) -> Callable[[Decorated], Decorated]:
    """Decorate a program with its demonstration, which a warm start plays. Needed if some acts are not for the
    environment."""

    def decorate(program: Decorated) -> Decorated:
        program.demonstration = demonstration
        return program

    return decorate


def roles_of(program: Any) -> tuple[str, ...] | None:
    """The roles that a bound program declares; None without a declaration, where the environment's agents act."""
    said = declared(program, "roles")
    if said is None:
        return None
    return tuple(name for entry in said for name in ([entry] if isinstance(entry, str) else entry(options_of(program))))


def options_of(program: Any) -> Mapping[str, Any]:
    """The options that a recipe gives to a program; empty for a program that is played without a recipe."""
    options: Mapping[str, Any] = getattr(program, "options", {})
    return options


def demonstration_of(program: Any) -> Any:
    """The program that a warm start plays: the program's own demonstration, else `demonstrate`."""
    return declared(program, "demonstration") or demonstrate
