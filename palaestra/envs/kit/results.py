"""Step results: what `reset` and `step` return, for one agent and for several."""

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
    """What `reset` and `step` return where one agent acts.

    Args:
        seen: what the agent sees next; of an episode that is cut off, what it would have seen. Nobody sees what
            follows an episode that is over, so None will do there.
        over: the rules of the task ended the episode. cut: a limit did; `over` wins.
        act, readable: of the act just made, as `act_info` takes them.
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
    """What `reset` and `step` return where several agents act, at once or by turns.

    Args:
        seen: what is seen by those who act next; of agents who are cut off, what they would have seen.
        rewards: for what just happened; agents left out get 0.
        over: agents whose episode the rules of the task ended. cut: agents whose episode a limit ended; `over` wins.
        info: JSON values of the episode, and what `act_info` says of acts.
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
    """What `info` tells of an agent's act: `{"process": 0.5}` becomes `{"process": {agent: 0.5}}`.

    Args:
        told: numbers and labels by name. Numbers become columns of the table.
        readable: False marks the act as invalid: the environment could not read it.
    """
    about: dict[str, Any] = {name: {agent: value} for name, value in told.items()}
    return about if readable else about | {"invalid": {agent: True}}
