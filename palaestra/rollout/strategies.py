"""Strategies decide which episodes an iteration plays and which trajectories the update gets.

This module has the protocol of strategies, the context that they are called with, and dynamic sampling. Strategies are
nested: `collect` of the outer one calls the inner one, and `collect` of the innermost one plays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, get_args

from palaestra.chat import ContextFull
from palaestra.data import NextPrompt, Play, RunSetup, Step, StopReason, Trajectory
from palaestra.data.protocols import Sampling, Session
from palaestra.data.trajectory import noted
from palaestra.errors import ContractError, NoSignal, UnknownName, nearest
from palaestra.registry import PositiveInt, declared, register
from palaestra.rollout.settings import RolloutSettings


class Strategy(Protocol):
    """A part of the slot `strategy`: a class. A run makes one object of it, with its options.

    The runner calls the object with plays, and it returns the trajectories that the update learns from.
    `DynamicSampling` is a short example. These rules hold for all strategies:

    1. A strategy gets plays that differ in group, sample or seed. The outermost strategy gets whole groups. An inner
       strategy gets the plays that the outer one collects. Evaluations and demonstrations use no strategies.
    2. A strategy plays by `await rollout.collect(plays)`, as often as it likes, and in no other way. This calls the
       next strategy; from the last strategy it calls the runner. `rollout.more(n)` gives plays of n further groups.
    3. The class declares `called_per`. With "group", each group may have its own call, at the same time as calls for
       other groups and for later iterations. With "iteration", the default, one call gets all groups of an iteration,
       and iterations follow each other. Any other word is an error before anything is played. The asynchronous
       collector plays group by group, and refuses a strategy that is called per iteration.
    4. A strategy changes no play and no policy. `dataclasses.replace` makes another play, and `rollout.with_` changes
       how actions are drawn. A strategy may add roles to `rollout.setup.roles`, and then removes them itself.
    5. Random numbers derive from `rollout.seed`, so that a run can be repeated.
    6. All calls come on one thread, the one that plays, and a strategy awaits everything that takes time. It may have
       `state_dict` and `load_state_dict`. They are called on the same thread, between two steps of the event loop, and
       calls per group may be under way then. A checkpoint keeps a copy of the state.
    7. `rollout.played` holds all episodes that the runner has played, kept or not, and all of them count as spent.
       `collect` fills it, and the strategy does not change it. Trajectories that a strategy makes without playing are
       only returned.
    8. Numbers that a strategy writes to `rollout.metrics`, under its own names such as `dynamic_sampling/batches`, go
       to the log of the iteration. If it is called per group, the log has the mean over groups.
    9. Failed episodes come back as trajectories with the stop reason ERROR. A strategy returns them too, and the update
       leaves them out. An error that the strategy itself raises ends the run.
    """

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]: ...


CalledPer = Literal["group", "iteration"]


def called_per(strategy: Any) -> CalledPer:
    """What a call of the strategy gets: the plays of a "group", or of an "iteration", which is the default.

    Raises: ContractError, if the strategy declares another word.
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
class RolloutContext:
    """What a strategy gets beside its plays.

    Attributes:
        more: gives the plays of so many further groups of this iteration. Each call gives other groups.
        settings: of the rollout. sampling: how actions are drawn.
        step: number of the iteration. seed: all random numbers of the strategy derive from it.
        setup: environment, roles, program and the policies that act.
        metrics: numbers for the log of the iteration.
        played: all episodes that were played so far, kept or not. They count as spent.
        inner: the next strategy or the runner, which `collect` calls.
    """

    more: Callable[[int], list[Play]]
    settings: RolloutSettings
    sampling: Sampling
    step: int
    seed: int
    setup: RunSetup = field(default_factory=RunSetup)
    metrics: dict[str, float] = field(default_factory=dict)
    played: list[Trajectory] = field(default_factory=list)
    inner: Any = None

    async def collect(self, plays: Sequence[Play]) -> list[Trajectory]:
        """Play all plays through the next strategy; from the last strategy, by the runner."""
        return await self.inner(plays, self)  # type: ignore[no-any-return]

    def with_(self, *, sampling: Sampling) -> RolloutContext:
        """The same rollout with another sampling. Metrics and played episodes are shared."""
        return replace(self, sampling=sampling)


def play_through(
    strategies: Sequence[Strategy], collect: Callable[..., Awaitable[list[Trajectory]]]
) -> Callable[[Sequence[Play], RolloutContext], Awaitable[list[Trajectory]]]:
    """Nest the strategies around a runner's `collect`. The first is the outermost.

    Args:
        collect: is called with (plays, sampling), plays them and returns their trajectories.

    Raises: ContractError, as `called_per`.
    """

    async def play(plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        trajectories = await collect(plays, rollout.sampling)
        rollout.played.extend(trajectories)
        return trajectories

    inner = play
    for strategy in reversed(strategies):
        called_per(strategy)
        inner = _around(strategy, inner)
    return inner


def _around(strategy: Strategy, inner: Any) -> Any:
    async def play(plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        return await strategy(plays, replace(rollout, inner=inner))

    return play


# ---- dynamic sampling -------------------------------------------------------------------------------------
@register("strategy", "dynamic_sampling", uses=("group",), source="arXiv 2503.14476; cap and metric: public code")
class DynamicSampling:
    """Keep groups whose trajectories differ in a metric, and play further batches until there are enough such groups.

    An iteration needs as many groups as its plays have (`rollout.tasks`). Groups are kept in the order in which they
    were played, and surplus groups are left out. Everything that was played counts as spent.

    Args:
        metric: "outcome", the raw result, never shaped; "return", the sum of rewards; or a number in the last `info`
            of the environment.
        max_batches: most batches of an iteration, the first included. Higher: a run goes on longer where most tasks are
            too hard or too easy. Usual: 10; 0 or less: no limit.
        batch: groups of each further batch. None: as many as the iteration needs.

    Raises: NoSignal, if too few groups differ after `max_batches`; UnknownName, if a trajectory has no such metric.

    Failed episodes are not compared. Logged: dynamic_sampling/batches; dynamic_sampling/constant, the share of played
    groups that were constant; dynamic_sampling/discarded, the share of played groups that were not used.
    """

    called_per = "iteration"  # the number of groups is that of an iteration

    def __init__(self, *, metric: str = "outcome", max_batches: int = 10, batch: PositiveInt | None = None) -> None:
        self.metric, self.max_batches, self.batch = metric, max_batches, batch

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Return as many groups that differ as `plays` has groups."""
        wanted, played, batches = len({play.group for play in plays}), 0, 0
        kept: list[list[Trajectory]] = []
        while len(kept) < wanted:
            if 0 < self.max_batches <= batches:
                raise self._exhausted(len(kept), wanted, played, batches)
            groups = _groups(await rollout.collect(plays if not batches else rollout.more(self.batch or wanted)))
            kept += [group for group in groups if self.differs(group)]
            played, batches = played + len(groups), batches + 1
        rollout.metrics |= {
            "dynamic_sampling/batches": float(batches),
            "dynamic_sampling/constant": 1 - len(kept) / max(played, 1),
            "dynamic_sampling/discarded": 1 - wanted / max(played, 1),
        }
        return [trajectory for group in kept[:wanted] for trajectory in group]

    def differs(self, group: Sequence[Trajectory]) -> bool:
        """Whether any two trajectories of the group differ in the metric. Failed ones do not count."""
        return len({self.value(t) for t in group if t.stop is not StopReason.ERROR}) > 1

    def value(self, trajectory: Trajectory) -> float:
        """The metric of one trajectory.

        Raises: UnknownName, if it has no number of this name.
        """
        numbers = {n: v for n, v in trajectory.info.items() if isinstance(v, bool | int | float)}
        numbers["return"] = sum(trajectory.returns.values())
        if trajectory.outcome is not None or trajectory.stop.cut:  # cut off by a limit: it has failed
            numbers["outcome"] = trajectory.outcome or 0.0
        if self.metric not in numbers:
            raise UnknownName(
                where=f"strategy: dynamic_sampling, metric: {self.metric}",
                what=f"trajectory {trajectory.id} has no number of this name; it has {', '.join(sorted(numbers))}.",
                options=nearest(self.metric, numbers),
                remedy="Use `metric: return`, or let the environment give the number in its last `info`.",
            )
        return float(numbers[self.metric])

    def _exhausted(self, kept: int, wanted: int, played: int, batches: int) -> NoSignal:
        return NoSignal(
            where="strategy: dynamic_sampling",
            what=f"after {batches} batches, {kept} of {played} groups differ in `{self.metric}`, and {wanted} are "
            "needed. The tasks of the other groups are too easy or too hard.",
            remedy="Do one of these:\n"
            "  • use tasks of another difficulty, or a better warm start,\n"
            "  • set a larger `rollout.group` or a smaller `rollout.tasks`, or\n"
            "  • set a higher `strategy.dynamic_sampling.max_batches` (0: no limit).",
        )


def _groups(played: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The trajectories of each group. Groups are in the order of their first trajectories."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.group, []).append(trajectory)
    return list(groups.values())


# ---- the same actions under another prompt ------------------------------------------------------------------
Opened = Callable[[str, Hashable], Session]  # agent, key → a new session of the agent


def retold(trajectory: Trajectory, opened: Opened, *, instruction: str | None, **info: float) -> Trajectory | None:
    """The same actions under prompts with another instruction.

    Args:
        opened: opens a new session of an agent. Its argument `key` names the episode and the agent.
        instruction: stands in every prompt; None: no instruction.
        info: further numbers for every step, which become columns of the table.

    Returns: a trajectory whose steps have the new prompts and the mark `foreign`; None, if it does not fit the model's
        context.
    """
    sessions: dict[str, Session] = {}
    steps: list[Step] = []
    try:
        for step in trajectory.steps:
            if step.agent not in sessions:
                sessions[step.agent] = opened(step.agent, (trajectory.group, trajectory.sample, step.agent))
            observation = replace(step.observation, instruction=instruction)
            taken = sessions[step.agent].replay(observation, step.action)
            read = replace(
                step,
                observation=observation,
                prompt=taken.prompt,
                pictures=taken.pictures,
                segment=taken.segment,
            )
            steps.append(noted(read, foreign=1.0, **info))
    except ContextFull:
        return None
    last = {agent: replace(observation, instruction=instruction) for agent, observation in trajectory.last.items()}
    next_prompts: dict[str, NextPrompt] = {}
    for agent, session in sessions.items():
        prompt = session.end(last.get(agent) if agent in trajectory.next_prompts else None)
        if prompt is not None:
            next_prompts[agent] = prompt
    return replace(trajectory, steps=steps, last=last, next_prompts=next_prompts)


def opening(setup: RunSetup, **contexts: Any) -> Opened:
    """A function that opens sessions of the run's roles.

    Args:
        contexts: agent → a context that is used instead of its role's.
    """

    def opened(agent: str, key: Hashable) -> Session:
        role = setup.role(agent)
        return role.policy.session(context=contexts.get(agent, role.context), sampling=Sampling(), key=key)

    return opened
