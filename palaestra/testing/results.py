"""Results: what one call of an environment may return, and whether two results are the same.

Knows StepResults and Observations. Knows nothing of episodes.
"""

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
    """Say which rule is broken. Raises: ContractError, always."""
    raise ContractError(where=where, what=what, remedy=remedy)


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def check_json(value: Any, where: str, owner: str) -> None:
    """Rules 7 and 10: only what JSON can hold."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        broken(where, f"{owner} must hold JSON values: {error}.", "Convert with int(x), float(x), list(x) or str(x).")


def check_rewards(result: StepResult, agents: set[str], where: str) -> None:
    """Rule 4: finite numbers of known agents."""
    for agent, reward in result.rewards.items():
        if agent not in agents:
            broken(where, f"a reward for {agent!r}, no agent.", f"The agents are {sorted(agents)}.")
        if not isinstance(reward, Real) or not math.isfinite(reward):
            broken(where, f"the reward of {agent} is {reward!r}.", "Rewards must be finite numbers.")


def check_sets(result: StepResult, agents: set[str], where: str) -> None:
    """Rule 5: disjoint frozensets of known agents."""
    for key in ("terminated", "truncated"):
        value = getattr(result, key)
        if not isinstance(value, frozenset) or value - agents:
            broken(where, f"`{key}` must be a frozenset of agents, found {value!r}.", f"Agents: {sorted(agents)}.")
    both = result.terminated & result.truncated
    if both:
        broken(where, f"{sorted(both)} are terminated and truncated.", "Truncated means cut off before the end.")
    unknown = set(result.last) - result.truncated
    if unknown:
        broken(where, f"`last` shows something to {sorted(unknown)}.", "`last` is for agents in `truncated` only.")


def check_observation(seen: Any, vector_size: int | None, where: str) -> None:
    """Rule 3: it shows something, in the right dtypes."""
    if not isinstance(seen, Observation):
        broken(where, f"it must be an Observation, found {short(seen)}.", "Return Observation(text=…).")
    if seen.text is None and seen.messages is None and seen.vector is None and seen.image is None:
        broken(where, "it shows nothing.", "Fill `text`, `messages`, `vector` or `image`.")
    for key in ("text", "state_key"):
        if not isinstance(getattr(seen, key), str | None):
            broken(where, f"`{key}` must be a text, found {short(getattr(seen, key))}.", "Use str(…).")
    if seen.vector is not None:
        vector = seen.vector
        flat = isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.ndim == 1
        if not flat or not np.isfinite(vector).all():
            broken(where, f"`vector` must be finite float32 (n,), found {short(vector)}.", "Use np.float32, flatten.")
        if vector_size is not None and len(vector) != vector_size:
            broken(where, f"`vector` has {len(vector)} numbers.", f"`vector_size` promises {vector_size}.")
    if seen.image is not None and (not isinstance(seen.image, np.ndarray) or seen.image.dtype != np.uint8):
        broken(where, f"`image` must be uint8, found {short(seen.image)}.", "Use values 0–255 of dtype uint8.")


def check_info(info: Any, agents: set[str], where: str) -> None:
    """Rule 7: JSON values; `success` a bool; `invalid` names agents."""
    if not isinstance(info, Mapping):
        broken(where, f"`info` must be a mapping, found {short(info)}.", "Return info={…}.")
    check_json(dict(info), f"{where}, info", "`info`")
    if not isinstance(info.get("success", False), bool):
        broken(where, f'`info["success"]` must be a bool, found {info["success"]!r}.', 'Scores go to `info["score"]`.')
    if info.get("stop", "completed") not in {reason.value for reason in StopReason}:
        broken(
            where, f'`info["stop"]` is {info["stop"]!r}.', "Name one of palaestra.data.StopReason, such as parse_error."
        )
    invalid = info.get("invalid", {})
    if not isinstance(invalid, Mapping) or set(invalid) - agents:
        broken(where, f'`info["invalid"]` must name agents, found {invalid!r}.', "Write {agent: True}.")


# ---- sameness ---------------------------------------------------------------------------------------------
def check_same(before: StepResult, now: StepResult, where: str, how: str) -> None:
    """Rules 8 and 12: same observations, rewards and end; `how` says what was done to get the second."""
    for what, first, second in _differences(before, now):
        broken(
            where,
            f"after {how} and the same actions {what} differs: {short(first)}, then {short(second)}.",
            "Draw everything random from the task's seed, and forget all of the last episode in `reset`.",
        )


def _differences(before: StepResult, now: StepResult) -> Iterator[tuple[str, Any, Any]]:
    for key, what in (("observations", "who acts next"), ("last", "whom `last` shows something")):
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
