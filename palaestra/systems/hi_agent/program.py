"""The program `foresight`: it tries several subgoals from the same state, and continues with one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Observation, Step, StepResult, derive
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import declaring, register
from palaestra.rollout.programs import acted_by

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode
    from palaestra.training.settings import RunSettings

Several = Annotated[int, pydantic.Field(ge=1)]


def _refuse_unknown(planner: str, agents: Sequence[str]) -> None:
    if planner not in agents:
        raise RecipeError(
            where="program: foresight",
            what=f"the environment has no agent `{planner}`.",
            options=agents,
            remedy="Name the agent that sets subgoals in `planner`.",
        )


def _fits(options: Mapping[str, Any], settings: RunSettings, source: Any) -> None:
    """Refuse a planner that is no agent of the environment, before the start."""
    _refuse_unknown(options["planner"], source.agents)


@register("program", "foresight", uses=("snapshot",), source="arXiv 2510.14388")
@acted_by()
@declaring(provides=frozenset({"node"}), fits=_fits)
async def foresight(
    episode: Episode,
    *,
    planner: str = "planner",
    subgoals: Several = 4,
    follow: Literal["first", "best", "random"] = "first",
) -> None:
    """The planner sets several subgoals in each of its states, and each one is carried out from that state.

    An *attempt* is a subgoal and all that the others do until the planner's next turn. After each attempt the
    environment is restored to the state of the decision; after the last one, to the end of the chosen attempt. So n
    decisions take n · subgoals attempts, where trying all sequences would take subgoals to the power of n. Every
    attempt is in the trajectory and counts as spent. Rewards, outcome and the environment's `info` count from the
    chosen attempts only.

    A planner's step carries `node`, which is the same for all subgoals of one state. Every step of an attempt carries
    the attempt's number as `invocation`, and the others' steps carry the planner's turn as `parent`.

    Policies must see the state alone, not their earlier attempts: `context: latest_only` for language policies, no
    memory for network policies.

    Args:
        planner: the agent that sets subgoals.
        subgoals: attempts per state. 1 plays without comparison. Higher: a better comparison, but each decision costs
            more. Usual: 4.
        follow: the attempt that the episode continues with. "first" visits the states that the planner visits alone,
            also in evaluations. "best" takes the highest `judged`, the first of equals. "random" takes any, by seed.

    Raises: RecipeError, if the environment has no such agent; EpisodeFailure, if it cannot restore a state;
        ContractError, if a policy remembers earlier attempts.
    """
    _refuse_unknown(planner, episode.names)
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
    """A point of an episode to which it can return: the environment's state, and what counts so far."""

    result: StepResult
    state: Any
    info: Mapping[str, Any]
    returns: Mapping[str, float]
    latest: Mapping[str, Step]
    seen: Mapping[str, Observation]
    planned: Step | None = None  # the step that set the subgoal

    @classmethod
    def of(cls, episode: Episode, result: StepResult, state: Any, planned: Step | None = None) -> Attempt:
        """Record where the episode is now."""
        info, returns = dict(episode.trajectory.info), dict(episode.trajectory.returns)
        return cls(result, state, info, returns, dict(episode.latest), dict(episode.pending), planned)

    async def put_back(self, episode: Episode) -> None:
        """Return the episode to this point. Steps, tokens and turns that were spent stay spent."""
        await episode.host.restore(self.state)
        episode.trajectory.info, episode.trajectory.returns = dict(self.info), dict(self.returns)
        episode.latest, episode.pending = dict(self.latest), dict(self.seen)


async def _attempt(
    episode: Episode, planner: str, seen: Mapping[str, Observation], *, node: str, number: int
) -> tuple[Step, StepResult]:
    """Play one subgoal and the others' acts for it, until the planner is asked again or the episode ends."""
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
    """Every agent with an observation acts, as in the program `play`."""
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
    """Raise a ContractError if a later subgoal was not sampled from the same prompt and state as the first one."""
    appended = first is not latest and len(latest.prompt) > 0 and first is not None and first.segment == latest.segment
    if appended or agent.session.remembers():
        raise ContractError(
            where=f"program: foresight, agent {agent.name}",
            what="its policy remembers earlier attempts from the same state, so subgoals cannot be compared.",
            remedy="Give a language policy `context: latest_only`, and a network policy no memory (`body: mlp`).",
        )
