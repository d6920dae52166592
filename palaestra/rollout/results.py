"""Checks what an environment returns before it enters an episode. A fault fails this episode only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from palaestra.boundary.cleaning import clean_action, clean_text, clean_value, shown
from palaestra.data import Action, StepResult, StopReason, Trajectory
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.registry.column_names import may_be_missing

OUTCOMES = ("success", "score")  # names in an environment's info that give the outcome
LARGEST_REWARD = 1e15  # the variance of larger ones does not fit float32
LARGEST = 3e38  # of a number that becomes a column, in float32


def agents_of(environment: Any) -> tuple[str, ...]:
    """The names of an environment's agents.

    Raises: ContractError, unless they are distinct texts, which files can hold; any error of the environment.
    """
    given = environment.agents
    names = () if isinstance(given, str) else tuple(given)
    fine = all(isinstance(name, str) and name and clean_text(name) == name for name in names)
    if not names or not fine or len({*names}) < len(names):
        raise ContractError(
            where="agents",
            what=f"`agents` is {shown(given, most=200)}; it must be a tuple of different names.",
            remedy='Write `agents = ("player",)`.',
        )
    return names


def refuse_result(result: StepResult, agents: Collection[str], *, environment: str, turn: int) -> None:
    """Refuse agents that do not exist, and wrong numbers. Raises: EpisodeFailure.

    Args:
        agents: of the environment. environment: its name. turn: number of acts so far.
    """
    for name in ("observations", "rewards", "terminated", "truncated", "last"):
        for agent in getattr(result, name):
            if agent not in agents:
                raise EpisodeFailure(
                    boundary="environment",
                    where=f"environment {environment}, {name}, turn {turn}",
                    what=f"it names `{shown(agent)}`, which is none of its agents.",
                    options=agents,
                    remedy="Run palaestra.testing.check_environment on it.",
                )
    _refuse_info(result.info, environment=environment, turn=turn)


def no_observation(environment: str) -> EpisodeFailure:
    """The failure of an episode whose `reset` shows nothing to any agent."""
    return EpisodeFailure(
        boundary="environment",
        where=f"environment {environment}, reset",
        what="it gave no observation, so that no agent can act.",
        remedy="Give the observation of each agent who acts first.",
    )


def _refuse_info(info: Mapping[str, Any], *, environment: str, turn: int) -> None:
    """Refuse a wrong number, result or stop reason in the environment's info."""
    for name, given in info.items():
        of_agents = isinstance(given, Mapping) and name not in OUTCOMES
        for agent, value in given.items() if of_agents else [("", given)]:
            fault = _fault(name, value, of_agents=of_agents)
            if fault is not None:
                raise EpisodeFailure(
                    boundary="environment",
                    where=f"environment {environment}, info, {f'agent {agent}, ' if agent else ''}turn {turn}",
                    what=fault,
                    options=[reason.value for reason in StopReason] if name == "stop" else [],
                    remedy="Numbers must be finite; leave a name out where there is none.",
                )


def _fault(name: str, value: Any, *, of_agents: bool) -> str | None:
    """The fault of a value of an environment's info; None, if it has none."""
    if is_no_number(name, value):
        return f"`{name}` is {value}."
    try:
        if name == "stop":
            StopReason(value)
        elif name in OUTCOMES and value is not None:
            if abs(float(value)) > LARGEST_REWARD:
                return f"`{name}` is {value}; its size may be at most {LARGEST_REWARD:g}."
        elif of_agents and name in ("invocation", "parent"):
            int(value)
    except (TypeError, ValueError, OverflowError):
        return f"`{name}` is {value!r}, no {'reason to stop' if name == 'stop' else 'number'}."
    return None


def is_no_number(name: str, value: Any) -> bool:
    """Whether float32 does not hold a value: it is too large, or NaN under a name whose column may not lack values."""
    if isinstance(value, int):
        return abs(value) > LARGEST
    if not isinstance(value, float | np.floating):
        return False
    if np.isfinite(value):
        return abs(float(value)) > LARGEST
    return not (may_be_missing(name) and np.isnan(value))


def outcome_of(info: Mapping[str, Any]) -> float | None:
    """The outcome: the first of `OUTCOMES` that the environment gives; None, if it is not known yet."""
    told = (info.get(name) for name in OUTCOMES)
    return next((float(value) for value in told if value is not None), None)


def clean_notes(trajectory: Trajectory) -> None:
    """Clean what a program, a reader or a tool wrote on the episode and its steps. Raises: EpisodeFailure, for an
    action that is none, which is removed."""
    trajectory.info = clean_value(trajectory.info, trajectory.replaced)
    wrong: ContractError | None = None
    for step in trajectory.steps:
        if step.info:
            step.info = clean_value(step.info, trajectory.replaced)
        try:
            step.action = clean_action(step.action, trajectory.replaced)
        except ContractError as error:
            step.action, wrong = Action(), error
    if wrong is not None:
        raise EpisodeFailure(boundary="part", where=f"program, {wrong.where}", what=wrong.what)


def refuse_notes(trajectory: Trajectory) -> None:
    """Refuse NaN, and numbers that float32 does not hold, that a program wrote on a step. Raises: EpisodeFailure."""
    for step in trajectory.steps:
        for name, value in step.info.items():
            if is_no_number(name, value):
                raise EpisodeFailure(
                    boundary="part",
                    where=f"program, agent {step.agent}, turn {step.turn}, info",
                    what=f"`{name}` is {value}.",
                    remedy="Numbers must be finite; leave a name out where there is none.",
                )


def refuse_reward(amount: float, total: float, *, environment: str, agent: str, turn: int) -> None:
    """Refuse a reward, or a sum of an agent's rewards, that is not finite or too large. Raises: EpisodeFailure."""
    if np.isfinite(amount) and abs(amount) <= LARGEST_REWARD and abs(total) <= LARGEST_REWARD:
        return
    too_large = np.isfinite(amount)
    what = f"the reward is {amount}."
    if too_large and abs(amount) <= LARGEST_REWARD:
        what = f"the sum of the rewards is {total}."
    raise EpisodeFailure(
        boundary="environment",
        where=f"environment {environment}, agent {agent}, turn {turn}",
        what=what,
        remedy=f"The size of rewards may be at most {LARGEST_REWARD:g}; scale those of the environment."
        if too_large
        else "Rewards must be finite numbers; correct the environment's `step`.",
    )
