"""Retelling: an episode that happened, as it would have been read under another prompt, token for token.

The actions stay what they were; prompts and segments are made anew by a session that takes each action again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from palaestra.chat import ContextFull
from palaestra.data import NextPrompt, Observation, RunSetup, Step, Trajectory
from palaestra.data.protocols import Sampling, Session
from palaestra.data.trajectory import noted

Opened = Callable[[str, Hashable], Session]  # agent, key → a session to tell it to


def retold(trajectory: Trajectory, opened: Opened, *, instruction: str | None, **info: float) -> Trajectory | None:
    """The same actions after prompts that `opened` makes, under this instruction (None: under none).

    Args:
        opened: gives a fresh session of an agent; `key` names agent and episode as the runner does.
        info: numbers for every step, as columns of the table.

    Returns: a trajectory with `foreign` 1 on steps whose prompt is not the one they were sampled with; None, if it
        does not fit the model's context.
    """
    sessions: dict[str, Any] = {}
    steps: list[Step] = []
    try:
        for step in trajectory.steps:
            if step.agent not in sessions:
                sessions[step.agent] = opened(step.agent, (trajectory.group, trajectory.sample, step.agent))
            steps.append(_again(step, sessions[step.agent], instruction, info))
    except ContextFull:
        return None
    last = {agent: replace(observation, instruction=instruction) for agent, observation in trajectory.last.items()}
    next_prompts: dict[str, NextPrompt] = {}
    for agent, session in sessions.items():
        prompt = session.end(last.get(agent) if agent in trajectory.next_prompts else None)
        if prompt is not None:
            next_prompts[agent] = prompt
    return replace(trajectory, steps=steps, last=last, next_prompts=next_prompts)


def _again(step: Step, session: Any, instruction: str | None, info: dict[str, float]) -> Step:
    observation: Observation = replace(step.observation, instruction=instruction)
    taken = session.replay(observation, step.action)
    read = replace(
        step,
        observation=observation,
        prompt=taken.prompt,
        segment=taken.segment,
    )
    return noted(read, foreign=1.0, **info)


def opening(setup: RunSetup, **contexts: Any) -> Opened:
    """Sessions of the run's roles. `contexts`: per agent, another context than its role's."""

    def opened(agent: str, key: Hashable) -> Session:
        role = setup.role(agent)
        return role.policy.session(context=contexts.get(agent, role.context), sampling=Sampling(), key=key)

    return opened
