"""The program `proposer_solver`: one agent asks a question to a given answer, and the other tries to answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palaestra.data import StepResult
from palaestra.registry import register
from palaestra.rollout.programs import acted_by, demonstrated_by

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode

PROPOSER, SOLVER = "proposer", "solver"


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Demonstrate the program: the expert proposes and solves; of several attempts at one question only the first is
    recorded.
    """
    result = await episode.reset()
    while result.observations and not result.info.get("answered"):
        ((name, seen),) = result.observations.items()
        action = episode.agents[name].record(seen, await episode.expert(name))
        result = await episode.step({name: action})


@register("program", "proposer_solver", source="arXiv 2510.18821")
@acted_by(PROPOSER, SOLVER)
@demonstrated_by(demonstrate)
async def proposer_solver(episode: Episode) -> None:
    """The proposer acts until its question is asked; then the solver answers it, each time in a fresh conversation.

    For environments with agents of these names, whose `info` has `answered` when an attempt is over; then comes another
    attempt or the end. Where a task has its question from the start, the solver alone acts.

    Rows carry `stratum`: "proposer", or group and question of the solver's attempts, which are compared with each
    other. `dr_mas: {by: [stratum], returns: [trajectory, agent, invocation]}` is then REINFORCE with the batch's mean
    for the proposer, and a group of attempts for the solver.
    """
    result, proposer = await episode.reset(), None
    while PROPOSER in result.observations:
        proposer = episode.agents[PROPOSER]
        result = await _acted(episode, proposer, result, PROPOSER)
    while SOLVER in result.observations:
        question = f"{episode.play.group}: {episode.trajectory.info.get('asked', '')}"
        result = await _attempt(episode, episode.invoke(SOLVER, parent=proposer), result, question)


async def _attempt(episode: Episode, solver: Agent, result: StepResult, stratum: str) -> StepResult:
    """One attempt from its first observation to its answer."""
    while True:
        result = await _acted(episode, solver, result, stratum)
        if result.info.get("answered") or SOLVER not in result.observations:
            return result


async def _acted(episode: Episode, agent: Agent, result: StepResult, stratum: str) -> StepResult:
    action = await agent.act(result.observations[agent.name])
    assert agent.last is not None
    agent.last.info["stratum"] = stratum
    return await episode.step({agent.name: action})
