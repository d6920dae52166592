"""The program of CORY: a pioneer answers, an observer answers after reading that answer, and both earn the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pydantic

from palaestra.chat import head_of
from palaestra.data import Action, Observation, derive
from palaestra.errors import ContractError
from palaestra.registry import register
from palaestra.rollout.programs import acted_by, demonstrated_by

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode

PIONEER, OBSERVER = "pioneer", "observer"
QUERY, ANSWER = "{query}", "{answer}"
PLAIN = "{query} said: {answer}. now?"


def _complete(template: str) -> str:
    missing = [place for place in (QUERY, ANSWER) if place not in template]
    if missing:
        raise ValueError(f"it lacks {' and '.join(missing)}; the observer must read both")
    return template


Template = Annotated[str, pydantic.AfterValidator(_complete)]


def merged(template: str, query: str, answer: str) -> str:
    """Insert the query and the pioneer's answer into the template; placeholders inside these texts stay text."""
    before, _, after = template.partition(QUERY)
    return before.replace(ANSWER, answer) + query + after.replace(ANSWER, answer)


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Record the expert's answer for both roles, once to the query and once to the query with an answer.

    Both roles get both prompts, since roles may be exchanged and either policy must be able to act alone. The shown
    answer is the expert's; with probability `noise` some words at its end are removed, so that the second answer is not
    always a copy.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    result = await episode.reset()
    query, name = _query(episode, result.observations), episode.names[0]
    first = await episode.expert(name)
    words = (first.text or "").split()
    shown = words[: int(draw.integers(max(len(words), 1)))] if draw.random() < noise else words
    beside = replace(query, text=merged(PLAIN, query.text or "", " ".join(shown)), legal=None, state_key=None)
    for role in (PIONEER, OBSERVER):
        episode.agents[role].record(query, first)
        episode.agents[role].record(beside, first)
    await episode.step({PIONEER: first})


@register("program", "pioneer_observer", uses=("one_agent", "one_act"), source="arXiv 2410.06101")
@acted_by(PIONEER, OBSERVER)
@demonstrated_by(demonstrate)
async def pioneer_observer(
    episode: Episode, *, template: Template = PLAIN, show: bool = True, share: bool = True
) -> None:
    """The pioneer answers the query, the observer the query with that answer; both earn r(q, a₁) + r(q, a₂).

    For environments with one agent that acts once; the task is reset for each answer. The outcome is the pioneer's, who
    has read only the query and so acts as either policy will act alone. In evaluations the observer also answers the
    query alone, in a separate conversation that counts in no return. `info` has the rewards of the three answers:
    `pioneer`, `observer`, `observer_alone`.

    Args:
        template: prompt of the observer, with {query} and {answer}. Any other text in it must be in the warm start too.
        show: true: the observer reads the pioneer's answer; false: the query only.
        share: true: both earn the sum; false: each earns the reward of its own answer. With `show` and `share` both
            false, the two policies learn independently.

    If the pioneer's answer leaves no room for the observer's response, it is cut at its end, by words; the query is
    never cut. `info` has `cut`, the share of the words that were removed.

    Raises: ContractError, in an environment with several agents or acts.
    """
    result = await episode.reset()
    query = _query(episode, result.observations)
    pioneer, observer = episode.agents[PIONEER], episode.agents[OBSERVER]
    answer = await pioneer.act(query)
    first, told = await _judged(episode, PIONEER, answer)
    seen, cut = _fitting(observer, query, answer.text or "", template) if show else (query, 0.0)
    second, _ = await _judged(episode, OBSERVER, await observer.act(seen))
    if share:
        pioneer.reward(second)
        observer.reward(first)
    told = {**told, PIONEER: first, OBSERVER: second, "cut": cut}
    if episode.sampling.exact:  # an evaluation: measure the observer without the pioneer
        alone = episode.invoke(OBSERVER)
        third, _ = await _judged(episode, OBSERVER, await alone.act(query))
        alone.reward(-third)  # so that a return is the sum of two answers, as in training
        told["observer_alone"] = third
    episode.trajectory.info = {**episode.trajectory.info, **told}


async def _judged(episode: Episode, role: str, answer: Action) -> tuple[float, Mapping[str, Any]]:
    """Return the reward of one answer and the environment's `info`; then reset the task."""
    result = await episode.step({role: answer})
    if result.observations:
        raise _unfit(episode, "its episodes go on after the first act")
    await episode.reset()
    return float(sum(result.rewards.values())), result.info


def _query(episode: Episode, observations: Mapping[str, Observation]) -> Observation:
    """The observation of the task's only agent."""
    if len(episode.names) != 1 or len(observations) != 1:
        raise _unfit(episode, f"it has {len(episode.names)} agents")
    (seen,) = observations.values()
    return seen


def _fitting(agent: Agent, query: Observation, answer: str, template: str) -> tuple[Observation, float]:
    """The merged prompt, with as much of the answer as leaves room for a response; and the share that was cut."""
    words = answer.split()
    kept = len(words)
    seen = replace(query, text=merged(template, query.text or "", " ".join(words)), legal=None, state_key=None)
    while kept and not _fits(agent, seen):
        kept -= 1
        seen = replace(seen, text=merged(template, query.text or "", " ".join(words[:kept])))
    return seen, 1 - kept / len(words) if words else 0.0


def _fits(agent: Agent, seen: Observation) -> bool:
    """Whether a response of full length fits behind this prompt; always true for policies without tokens."""
    renderer, limit = agent.role.policy.renderer, agent.role.policy.limit
    if renderer is None or limit is None:
        return True
    seen = agent.view(seen)
    response = agent.role.sampling_of(agent.episode.sampling).max_tokens
    return len(head_of(renderer, seen)) + len(renderer.observation(seen, first=True)) + response <= int(limit)


def _unfit(episode: Episode, why: str) -> ContractError:
    return ContractError(
        where=f"program pioneer_observer, environment {episode.setup.environment_name}",
        what=f"{why}; this program compares two answers to one query.",
        remedy="Use an environment with one agent that acts once, such as alignment or sums.",
    )
