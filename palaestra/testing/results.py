"""The rules of `check_environment` for the result of one call, and the comparison of two results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, NoReturn

import numpy as np

from palaestra.data import Observation, StepResult, StopReason
from palaestra.errors import ContractError


def broken(where: str, what: str, remedy: str) -> NoReturn:
    """Raises: ContractError, always."""
    raise ContractError(where=where, what=what, remedy=remedy)


def short(value: Any) -> str:
    """A value as text, cut to the length that messages show."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def check_json(value: Any, where: str, owner: str) -> None:
    """Rules 7 and 10: the value must be JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        broken(where, f"{owner} must have JSON values: {error}.", "Convert with int(x), float(x), list(x) or str(x).")


def check_rewards(result: StepResult, agents: set[str], where: str) -> None:
    """Rule 4: rewards are finite numbers of known agents."""
    for agent, reward in result.rewards.items():
        if agent not in agents:
            broken(where, f"`rewards` names {agent!r}, which is not an agent.", f"The agents are {sorted(agents)}.")
        if not isinstance(reward, Real) or not math.isfinite(reward):
            broken(where, f"the reward of {agent} is {reward!r}.", "Rewards must be finite numbers.")


def check_sets(result: StepResult, agents: set[str], where: str) -> None:
    """Rule 5: `terminated` and `truncated` are disjoint frozensets of known agents."""
    for key in ("terminated", "truncated"):
        value = getattr(result, key)
        if not isinstance(value, frozenset) or value - agents:
            broken(
                where, f"`{key}` must be a frozenset of agents, found {value!r}.", f"The agents are {sorted(agents)}."
            )
    both = result.terminated & result.truncated
    if both:
        remedy = "Terminated means ended by the rules of the task, truncated means cut off by a limit. Choose one."
        broken(where, f"{sorted(both)} are both terminated and truncated.", remedy)
    unknown = set(result.last) - result.truncated
    if unknown:
        broken(where, f"`last` names {sorted(unknown)}.", "Put only agents of `truncated` into `last`.")


def check_observation(seen: Any, vector_size: int | None, where: str) -> None:
    """Rule 3: an observation has some content, in the right dtypes."""
    if not isinstance(seen, Observation):
        broken(where, f"it must be an Observation, found {short(seen)}.", "Return Observation(text=…).")
    if seen.text is None and seen.messages is None and seen.vector is None and seen.image is None:
        broken(where, "the observation is empty.", "Fill `text`, `messages`, `vector` or `image`.")
    for key in ("text", "state_key"):
        if not isinstance(getattr(seen, key), str | None):
            broken(where, f"`{key}` must be a text, found {short(getattr(seen, key))}.", "Use str(…).")
    if seen.vector is not None:
        vector = seen.vector
        flat = isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.ndim == 1
        if not flat or not np.isfinite(vector).all():
            remedy = "Convert with np.asarray(x, np.float32).reshape(-1)."
            broken(where, f"`vector` must be finite float32 (n,), found {short(vector)}.", remedy)
        if vector_size is not None and len(vector) != vector_size:
            remedy = f"`vector_size` is {vector_size}. Make both equal."
            broken(where, f"`vector` has {len(vector)} numbers.", remedy)


def check_info(info: Any, agents: set[str], where: str) -> None:
    """Rule 7: `info` has JSON values, `success` is a bool, `invalid` names agents."""
    if not isinstance(info, Mapping):
        broken(where, f"`info` must be a mapping, found {short(info)}.", "Return info={…}.")
    check_json(dict(info), f"{where}, info", "`info`")
    if not isinstance(info.get("success", False), bool):
        what = f'`info["success"]` must be a bool, found {info["success"]!r}.'
        broken(where, what, 'Put a score into `info["score"]`.')
    if info.get("stop", "completed") not in {reason.value for reason in StopReason}:
        broken(
            where, f'`info["stop"]` is {info["stop"]!r}.', "Name one of palaestra.data.StopReason, such as parse_error."
        )
    invalid = info.get("invalid", {})
    if not isinstance(invalid, Mapping) or set(invalid) - agents:
        broken(where, f'`info["invalid"]` must name agents, found {invalid!r}.', "Write {agent: True}.")


# ---- sameness ---------------------------------------------------------------------------------------------
def check_same(before: StepResult, now: StepResult, where: str, how: str) -> None:
    """Rules 8 and 12: two results must be the same. `how` says how the second one was made."""
    for what, first, second in _differences(before, now):
        broken(
            where,
            f"after {how} and the same actions {what} differs: {short(first)}, then {short(second)}.",
            "Draw all random numbers from the task's seed, and clear all state of the last episode in `reset`.",
        )


def _differences(before: StepResult, now: StepResult) -> Iterator[tuple[str, Any, Any]]:
    for key, what in (("observations", "who acts next"), ("last", "who is in `last`")):
        if set(getattr(before, key)) != set(getattr(now, key)):
            yield what, sorted(getattr(before, key)), sorted(getattr(now, key))
            return
    for key in ("rewards", "terminated", "truncated"):
        if getattr(before, key) != getattr(now, key):
            yield f"`{key}`", getattr(before, key), getattr(now, key)
    shown, shown_now = {**before.observations, **before.last}, {**now.observations, **now.last}
    for agent, seen in shown.items():
        for key in ("text", "messages", "vector", "image", "legal", "state_key"):
            first, second = getattr(seen, key), getattr(shown_now[agent], key)
            if not _equal(first, second):
                yield f"`{key}` of {agent}", first, second


def _equal(first: Any, second: Any) -> bool:
    if first is None or second is None or isinstance(first, str):
        return bool(first is second or (isinstance(first, str) and first == second))
    return np.array_equal(first, second)
