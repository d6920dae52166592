"""Foresight: several subgoals are tried from the same state, one after the other, and one of them is gone on with.

Knows episodes, their standing and the environment's snapshots. Knows no method, no model and no environment by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Observation, Step, StepResult, derive
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import register
from palaestra.rollout.programs import acted_by

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode

Several = Annotated[int, pydantic.Field(ge=1)]


def _gives(*columns: str) -> Callable[[Any], Any]:
    """Decorates a program whose steps bring these columns into the table."""

    def decorate(program: Any) -> Any:
        program.provides = frozenset(columns)
        return program

    return decorate


@register("program", "foresight", uses=("snapshot",), source="arXiv 2510.14388")
@_gives("node")
@acted_by()
async def foresight(
    episode: Episode,
    *,
    planner: str = "planner",
    subgoals: Several = 4,
    follow: Literal["first", "best", "random"] = "first",
) -> None:
    """The planner sets several subgoals at each of its states; each is carried out from that state.

    A subgoal and all that the others do until the planner's next turn is an *attempt*. After each attempt the
    environment is put back, after the last one to where the chosen attempt ended; so n decisions take n · subgoals
    attempts, where trying all sequences would take subgoals to the power of n. Every attempt is in the trajectory and
    was spent; rewards, outcome and what the environment told count from the chosen ones only.

    A planner's step carries `node`, the same for all subgoals of one state; every step of an attempt carries its
    number as `invocation`, and the others' steps the planner's turn as `parent`.

    Policies must see the state alone, not their earlier attempts: `context: latest_only` for language policies, no
    memory for network policies.

    Args:
        planner: the agent that sets subgoals.
        subgoals: attempts at a state. Higher: a better comparison, dearer decisions. 1 is plain play. Usual: 4.
        follow: which attempt the episode goes on with. "first": states are met as the planner meets them alone, also
            in evaluations. "best": the one whose `judged` is highest, the first of equals. "random": any, by seed.

    Raises: RecipeError, if the environment has no such agent; EpisodeFailure, if it cannot be put back;
        ContractError, if a policy remembers.
    """
    if planner not in episode.names:
        raise RecipeError(
            where="program: foresight",
            what=f"environment {episode.setup.environment_name} has no agent `{planner}`.",
            options=episode.names,
            remedy="Name the agent that sets subgoals in `planner`.",
        )
    result, decision, tried = await episode.reset(), 0, 0
    while result.observations:
        if planner not in result.observations:
            result = await _others(episode, result.observations)
            continue
        attempts: list[Attempt] = []
        start = Attempt.of(episode, result, await episode.host.snapshot())
        for place in range(subgoals):
            if place:
                await start.put_back(episode)
            tried += 1
            node = f"{episode.trajectory.id}:{decision}"
            step, reached = await _attempt(episode, planner, result.observations, node=node, number=tried)
            attempts.append(Attempt.of(episode, reached, await episode.host.snapshot(), planned=step))
            _refuse_memory(episode.agents[planner], attempts[0].planned, step)
        chosen = _chosen(attempts, follow, seed=derive(episode.play.seed, "follow", decision))
        if chosen is not attempts[-1]:
            await chosen.put_back(episode)
        result, decision = chosen.result, decision + 1


@dataclass(slots=True, eq=False)
class Attempt:
    """Where an episode stands: the environment's state, and what counts so far."""

    result: StepResult
    state: Any
    info: Mapping[str, Any]
    returns: Mapping[str, float]
    latest: Mapping[str, Step]
    seen: Mapping[str, Observation]
    planned: Step | None = None  # the subgoal's step

    @classmethod
    def of(cls, episode: Episode, result: StepResult, state: Any, planned: Step | None = None) -> Attempt:
        """How the episode stands now."""
        info, returns = dict(episode.trajectory.info), dict(episode.trajectory.returns)
        return cls(result, state, info, returns, dict(episode.latest), dict(episode.pending), planned)

    async def put_back(self, episode: Episode) -> None:
        """Let the episode stand so again. Steps, tokens and turns that were spent stay spent."""
        await episode.host.restore(self.state)
        episode.trajectory.info, episode.trajectory.returns = dict(self.info), dict(self.returns)
        episode.latest, episode.pending = dict(self.latest), dict(self.seen)


async def _attempt(
    episode: Episode, planner: str, seen: Mapping[str, Observation], *, node: str, number: int
) -> tuple[Step, StepResult]:
    """One subgoal and what the others make of it, until the planner acts again or the episode is over."""
    turn = len(episode.trajectory.steps)
    actions = {planner: await episode.agents[planner].act(seen[planner], invocation=number)}
    planned = episode.latest[planner]
    planned.mark(node=node)
    for name in seen.keys() - {planner}:
        actions[name] = await episode.agents[name].act(seen[name], invocation=number, parent=turn)
    result = await episode.step(actions)
    while result.observations and planner not in result.observations:
        result = await _others(episode, result.observations, number=number, parent=turn)
    return planned, result


async def _others(
    episode: Episode, seen: Mapping[str, Observation], *, number: int = 0, parent: int | None = None
) -> StepResult:
    """Everybody who is asked acts, as in `play`."""
    actions = {
        name: await episode.agents[name].act(observation, invocation=number, parent=parent)
        for name, observation in seen.items()
    }
    return await episode.step(actions)


def _chosen(attempts: list[Attempt], follow: str, *, seed: int) -> Attempt:
    if follow == "first":
        return attempts[0]
    if follow == "random":
        return attempts[int(np.random.default_rng(seed).integers(len(attempts)))]
    return max(attempts, key=lambda attempt: attempt.planned.info.get("judged", 0.0))  # type: ignore[union-attr]


def _refuse_memory(agent: Agent, first: Step | None, latest: Step) -> None:
    """A second subgoal at a state must be drawn as the first one was."""
    appended = first is not latest and len(latest.prompt) > 0 and first is not None and first.segment == latest.segment
    if appended or agent.session.remembers():
        raise ContractError(
            where=f"program: foresight, agent {agent.name}",
            what="its policy remembers earlier attempts at the same state, so they cannot be compared.",
            remedy="Give a language policy `context: latest_only`, and a network policy no memory (`body: mlp`).",
        )
