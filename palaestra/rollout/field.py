"""Field: what a strategy works with to turn an iteration's plays into trajectories.

Strategies stand one inside the other: `collect` of the outer one runs the inner one, and that of the innermost plays.

Knows plays and trajectories. Knows no method, no runner and no environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, get_args

from palaestra.data import Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import ContractError
from palaestra.registry import declared
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.stage import Play, Stage


class Collect(Protocol):
    """Plays, and gives trajectories in the order of the plays, failed ones included."""

    def __call__(self, plays: Sequence[Play], sampling: Sampling | None = None) -> Awaitable[list[Trajectory]]: ...


Act = Callable[[Collect], Awaitable[list[Trajectory]]]  # what a runner performs


class Strategy(Protocol):
    """A part of the slot `strategy`: a class of which a run makes one object.

    It returns those trajectories that the update shall learn from. With `state_dict` and `load_state_dict` it is
    kept in checkpoints; both are called on the thread that plays.

    Its class says `called_per`. "group": each group may be played by a call of its own, beside others and beside those
    of later iterations, as under `training.max_staleness`. "iteration", which is meant where it says nothing: a call
    must get all groups of its iteration, and iterations come one after the other.
    """

    async def __call__(self, plays: Sequence[Play], field: Field) -> list[Trajectory]: ...


CalledPer = Literal["group", "iteration"]


def called_per(strategy: Any) -> CalledPer:
    """How often a strategy wants to be called; "iteration" where it says nothing.

    Raises: ContractError, for another word.
    """
    said = declared(strategy, "called_per")
    if said not in get_args(CalledPer):
        raise ContractError(
            where=f"strategy {getattr(strategy, '__name__', type(strategy).__name__)}",
            what=f"`called_per` is {said!r}.",
            options=get_args(CalledPer),
        )
    return cast("CalledPer", said)


@dataclass(slots=True, kw_only=True, eq=False)
class Field:
    """One call of a strategy.

    Attributes:
        supply: gives the plays of so many further groups of the same iteration.
        settings: of the rollout. sampling: how actions are drawn.
        stage: environment, roles and program. source: an environment that is asked about tasks only.
        policies: that act, by name. step: the iteration; seed: derive from it whatever is random.
        metrics: written to the log of the iteration.
        played: everything that was played so far, kept or not: it counts as spent.
    """

    supply: Callable[[int], list[Play]]
    settings: RolloutSettings
    sampling: Sampling
    policies: Mapping[str, Any]
    step: int
    seed: int
    stage: Stage | None = None
    source: Any = None
    metrics: dict[str, float] = field(default_factory=dict)
    played: list[Trajectory] = field(default_factory=list)
    inner: Any = None  # what is inside this strategy; set when it is called

    async def collect(self, plays: Sequence[Play]) -> list[Trajectory]:
        """Play all, by the next strategy or at last by the runner."""
        return await self.inner(plays, self)  # type: ignore[no-any-return]

    def more(self, groups: int) -> list[Play]:
        """The plays of so many further groups of this iteration; each call gives others."""
        return self.supply(groups)

    def with_(self, *, sampling: Sampling) -> Field:
        """The same field, where actions are drawn otherwise. Metrics and what was played are shared."""
        return dataclasses.replace(self, sampling=sampling)


def play_through(
    strategies: Sequence[Strategy], collect: Collect
) -> Callable[[Sequence[Play], Field], Awaitable[list[Trajectory]]]:
    """Strategies around a runner's `collect`, the first outermost. Without any, plays are collected as they are."""

    async def play(plays: Sequence[Play], field: Field) -> list[Trajectory]:
        found = await collect(plays, field.sampling)
        field.played.extend(found)
        return found

    inner = play
    for strategy in reversed(strategies):
        inner = _around(strategy, inner)
    return inner


def _around(strategy: Strategy, inner: Any) -> Any:
    async def act(plays: Sequence[Play], field: Field) -> list[Trajectory]:
        return await strategy(plays, dataclasses.replace(field, inner=inner))

    return act
