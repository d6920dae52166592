"""Build the StepResult that `reset` and `step` return, for one agent or for several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from palaestra.data import Observation, StepResult


def single(
    agent: str,
    seen: Observation | None,
    *,
    reward: float = 0.0,
    over: bool = False,
    cut: bool = False,
    act: Mapping[str, Any] | None = None,
    readable: bool = True,
    info: Mapping[str, Any] | None = None,
) -> StepResult:
    """The StepResult of an environment in which one agent acts.

    Args:
        seen: what the agent sees next, or would have seen if the episode is cut off. May be None if it is over.
        over: whether the episode ended by the rules of the task. cut: whether a limit ended it. If both are true,
            `over` counts.
        act, readable: numbers and labels of the act just made, and whether it could be read; see `act_info`.
        info: JSON values of the episode, such as `success`.
    """
    return several(
        {} if seen is None else {agent: seen},
        rewards={agent: float(reward)},
        over=(agent,) if over else (),
        cut=(agent,) if cut else (),
        info={**act_info(agent, act or {}, readable=readable), **(info or {})},
    )


def several(
    seen: Mapping[str, Observation],
    *,
    rewards: Mapping[str, float] | None = None,
    over: Collection[str] = (),
    cut: Collection[str] = (),
    info: Mapping[str, Any] | None = None,
) -> StepResult:
    """The StepResult of an environment in which several agents act, at once or by turns.

    Args:
        seen: what the agents that act next see, and what agents that are cut off would have seen.
        rewards: rewards of this step. An agent without an entry gets 0.
        over: agents whose episode ended by the rules of the task. cut: agents whose episode a limit ended. For an
            agent in both, `over` counts.
        info: JSON values of the episode, and the entries that `act_info` gives for acts.
    """
    ended = frozenset(over)
    broken_off = frozenset(cut) - ended
    return StepResult(
        observations={agent: one for agent, one in seen.items() if agent not in ended | broken_off},
        last={agent: one for agent, one in seen.items() if agent in broken_off},
        rewards=dict(rewards or {}),
        terminated=ended,
        truncated=broken_off,
        info=dict(info or {}),
    )


def act_info(agent: str, told: Mapping[str, Any], *, readable: bool = True) -> dict[str, Any]:
    """The entries of `info` for an agent's act: `{"process": 0.5}` becomes `{"process": {agent: 0.5}}`.

    Args:
        told: numbers and labels by name. Numbers become columns of the table.
        readable: False: the environment could not read the act, which is marked as invalid.
    """
    about: dict[str, Any] = {name: {agent: value} for name, value in told.items()}
    return about if readable else about | {"invalid": {agent: True}}
