"""Keep the state of an episode as one value, `self.state`, which can be saved and restored."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Protocol, TypeVar

from palaestra.errors import ContractError

State = TypeVar("State")


class KeepsState(Protocol[State]):
    """An environment whose episode is one value. `reset` sets `self.state`, and `step` replaces it.

        @dataclass(frozen=True)
        class State:
            secret: int
            turn: int = 0

        class Guess(KeepsState[State]):
            abilities = ("tasks", "snapshot")

    It provides the ability `snapshot` and the method `close`. A snapshot of a frozen dataclass is the state itself,
    since no later step changes it. A state of any other kind is copied.
    """

    _state: State | None = None

    @property
    def state(self) -> State:
        """The state of the present episode. Raises: ContractError, if `reset` was not called."""
        return started(self._state, self)

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    def snapshot(self) -> Any:
        """The present state. Later steps do not change it."""
        return kept(self._state)

    def restore(self, state: Any) -> None:
        """Continue from a snapshot."""
        self._state = kept(state)

    def close(self) -> None:
        """End the episode. The next one begins with `reset`."""
        self._state = None


def started(value: State | None, environment: object) -> State:
    """The value, which `reset` has set. Raises: ContractError, if it is None."""
    if value is None:
        raise unstarted(environment)
    return value


def unstarted(environment: object) -> ContractError:
    """The error for a call that needs an episode, while `reset` was not called."""
    return ContractError(
        where=f"environment {type(environment).__name__}",
        what="`step` was called before `reset`.",
        remedy="Call `reset(task)` first. palaestra.testing.check_environment shows how an episode runs.",
    )


def kept(state: State) -> State:
    """The state itself if it is a frozen dataclass, else a deep copy."""
    unchanging = dataclasses.is_dataclass(state) and type(state).__dataclass_params__.frozen  # type: ignore[attr-defined]
    return state if unchanging else copy.deepcopy(state)
