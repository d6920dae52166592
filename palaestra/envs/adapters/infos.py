"""The `info` of other packages' environments, as Palaestra keeps it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from palaestra.envs.adapters.spaces import MASK
from palaestra.registry.column_names import FLAGS, FROM_EPISODES, KEYS, LABELS

LOG = logging.getLogger("palaestra.adapters")
SUCCESS = ("is_success", "success")  # names that environments use for it
# Names in `info` that mean something to Palaestra.
TAKEN = frozenset({"success", "score", "stop", "invalid", "illegal", "returns", "objectives", "invocation", "parent"})
TAKEN |= FROM_EPISODES | {*KEYS, *LABELS, *FLAGS}
LARGEST = 1000  # numbers of an array that is kept


def succeeded(info: Mapping[str, Any]) -> bool | None:
    """Whether an environment says in its `info` that the goal is reached; None, if it says nothing."""
    said = [np.asarray(info[name]) for name in SUCCESS if info.get(name) is not None]
    numbers = [one for one in said if one.size == 1 and one.dtype.kind in "biuf"]
    return bool(numbers[0].item()) if numbers else None


def kept(environment: str, info: Any) -> dict[str, Any]:
    """What is kept of an environment's `info`: all but the action mask and what `succeeded` reads.

    A name that has a meaning in Palaestra gets `env_` before it. An array of more than `LARGEST` numbers becomes a
    text, since each step would keep it, and so does a number that is not finite. A line of the log says each once.

    Args:
        environment: its name, for the log.
    """
    if not isinstance(info, Mapping):
        return {}
    named: dict[str, Any] = {}
    for key, value in info.items():
        name = str(key)
        if name == MASK or (name in SUCCESS and succeeded(info) is not None):
            continue
        if name in TAKEN:
            _say(environment, f"`{name}` has a meaning of its own in Palaestra, and is kept as `env_{name}`")
            name = f"env_{name}"
        named[name] = _small(environment, name, value)
    return named


def _small(environment: str, name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _small(environment, f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray) and value.size > LARGEST:
        _say(environment, f"`{name}` is a large array, and only its shape is kept")
        return f"array {value.shape}"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        _say(environment, f"`{name}` is not always a finite number, and is then kept as a text")
        return str(value)
    return value


@functools.lru_cache(1000)
def _say(environment: str, what: str) -> None:
    """Log a line, once in a process."""
    LOG.warning("environment %s, info: %s.", environment, what)
