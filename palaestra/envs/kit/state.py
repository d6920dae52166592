"""The state of an episode as one value, `self.state`: read, replaced, remembered and put back in one way."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Protocol, TypeVar

from palaestra.errors import ContractError

State = TypeVar("State")


class KeepsState(Protocol[State]):
    """An environment whose episode is one value: `reset` sets `self.state`, `step` sets the next one.

        @dataclass(frozen=True)
        class State:
            secret: int
            turn: int = 0

        class Guess(KeepsState[State]):
            abilities = ("tasks", "snapshot")

    It gives the ability `snapshot`, and `close`. A frozen dataclass is taken as it is, since no later step changes it;
    a state of any other kind is copied.
    """

    _state: State | None = None

    @property
    def state(self) -> State:
        """The state of the present episode. Raises: ContractError, if there is none: `reset` comes first."""
        return started(self._state, self)

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    def snapshot(self) -> Any:
        """The present state; what happens afterwards does not change it."""
        return kept(self._state)

    def restore(self, state: Any) -> None:
        """Go on from `state`."""
        self._state = kept(state)

    def close(self) -> None:
        """The episode is over; the next begins with `reset`."""
        self._state = None


def started(value: State | None, environment: object) -> State:
    """What `reset` has set. Raises: ContractError, if it is None."""
    if value is None:
        raise unstarted(environment)
    return value


def unstarted(environment: object) -> ContractError:
    """The error of an environment that is asked to go on before any task was set up."""
    return ContractError(
        where=f"environment {type(environment).__name__}",
        what="`step` was called before `reset`.",
        remedy="Call `reset(task)` first; palaestra.testing.check_environment shows how an episode runs.",
    )


def kept(state: State) -> State:
    """The state itself if it is a frozen dataclass, else a copy of all that it holds."""
    unchanging = dataclasses.is_dataclass(state) and type(state).__dataclass_params__.frozen  # type: ignore[attr-defined]
    return state if unchanging else copy.deepcopy(state)
