"""Strategies: how plays become trajectories. Here are their contract and context, and dynamic sampling.

Strategies are nested: `collect` of the outer one calls the inner one, and `collect` of the innermost one plays.
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
    """A part of the slot `strategy`: a class of which a run makes one object, with its options.

    The runner calls it with plays, and it returns the trajectories that the update learns from. `DynamicSampling` is a
    short one. What holds for all of them:

    1. It gets plays that differ in group, sample or seed. The outermost strategy gets whole groups, one inside another
       what that plays. Evaluations and demonstrations are played without strategies.
    2. It plays by `await rollout.collect(plays)`, as often as it likes, and nothing else plays. That calls the next
       strategy, and the last one's calls reach the runner. `rollout.more(n)` gives plays of n further groups.
    3. Its class says `called_per`. "group": each group may be played by a call of its own, beside calls for other
       groups and for later iterations. "iteration", which holds where it says nothing: one call gets all groups of an
       iteration, and iterations come one after the other. Another word is an error before anything is played. The
       asynchronous collector plays group by group, and refuses a strategy that is called per iteration.
    4. It changes no play and no policy. Another play is made by `dataclasses.replace`, another way to draw actions by
       `rollout.with_`. Roles may be added to `rollout.setup.roles`; who adds one removes it.
    5. What is random derives from `rollout.seed`, so that a run repeats itself.
    6. It is called on one thread, the one that plays, and awaits whatever takes time. `state_dict` and
       `load_state_dict`, which it may have, are called on that thread too while it plays, between two steps of the
       event loop: calls per group may be under way then. A checkpoint keeps a copy of the state.
    7. `rollout.played` holds all that the runner played, kept or not; `collect` fills it, and the strategy leaves it
       alone. All of it counts as spent. What a strategy makes without playing is only returned.
    8. What it writes to `rollout.metrics`, numbers under names of its own such as `dynamic_sampling/batches`, goes to
       the log of the iteration. Per group the log has the mean over groups.
    9. Failed episodes come back as trajectories with the stop reason ERROR and are passed on; the update leaves them
       out. What the strategy itself raises ends the run.
    """

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]: ...


CalledPer = Literal["group", "iteration"]


def called_per(strategy: Any) -> CalledPer:
    """How often a strategy must be called: "group" or "iteration", which is the default.

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
class RolloutContext:
    """What a strategy may use of its rollout.

    Attributes:
        more: gives the plays of so many further groups of this iteration, others at each call.
        settings: of the rollout. sampling: how actions are drawn.
        step: the iteration; seed: derive from it whatever is random.
        setup: environment, roles, program and the policies that act.
        metrics: written to the log of the iteration.
        played: everything that was played so far, kept or not: it counts as spent.
    """

    more: Callable[[int], list[Play]]
    settings: RolloutSettings
    sampling: Sampling
    step: int
    seed: int
    setup: RunSetup = field(default_factory=RunSetup)
    metrics: dict[str, float] = field(default_factory=dict)
    played: list[Trajectory] = field(default_factory=list)
    inner: Any = None  # what is inside this strategy; set when it is called

    async def collect(self, plays: Sequence[Play]) -> list[Trajectory]:
        """Play all plays, by the next strategy, or by the runner after the last one."""
        return await self.inner(plays, self)  # type: ignore[no-any-return]

    def with_(self, *, sampling: Sampling) -> RolloutContext:
        """The same rollout with another sampling. Metrics and played episodes are shared."""
        return replace(self, sampling=sampling)


def play_through(
    strategies: Sequence[Strategy], collect: Callable[..., Awaitable[list[Trajectory]]]
) -> Callable[[Sequence[Play], RolloutContext], Awaitable[list[Trajectory]]]:
    """Strategies around a runner's `collect`, the first outermost. Without any, plays are collected as they are.

    Args:
        collect: plays all and gives their trajectories, called with (plays, sampling).

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
    """Keep groups whose trajectories differ in a metric; play further batches until there are as many as asked for.

    An iteration asks for the groups of its plays (`rollout.tasks`). Groups are kept in the order in which they were
    played; those beyond the number are cut. Everything that was played counts as spent.

    Args:
        metric: "outcome", the raw result, never shaped; "return", the sum of rewards; or a number that the
            environment tells in its last `info`.
        max_batches: batches an iteration may play, the first included. Higher: hard sets of tasks last longer.
            Usual: 10; 0 or less: no limit.
        batch: groups of each further batch. None: as many as asked for.

    Raises: NoSignal, if after `max_batches` too few groups differ; UnknownName, for a metric that a trajectory has not.

    Failed episodes are not compared. Logged: dynamic_sampling/batches; dynamic_sampling/constant, the share of played
    groups that were constant; dynamic_sampling/discarded, the share that was not used, groups cut included.
    """

    called_per = "iteration"  # batches are counted over all groups of an iteration

    def __init__(self, *, metric: str = "outcome", max_batches: int = 10, batch: PositiveInt | None = None) -> None:
        self.metric, self.max_batches, self.batch = metric, max_batches, batch

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """The trajectories of as many groups that differ as `plays` has groups."""
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
        """Whether two trajectories of the group that did not fail differ in the metric."""
        return len({self.value(t) for t in group if t.stop is not StopReason.ERROR}) > 1

    def value(self, trajectory: Trajectory) -> float:
        """The metric of one trajectory.

        Raises: UnknownName, if it has none of this name.
        """
        numbers = {n: v for n, v in trajectory.info.items() if isinstance(v, bool | int | float)}
        numbers["return"] = sum(trajectory.returns.values())
        if trajectory.outcome is not None:
            numbers["outcome"] = trajectory.outcome
        if self.metric not in numbers:
            raise UnknownName(
                where=f"strategy: dynamic_sampling, metric: {self.metric}",
                what=f"trajectory {trajectory.id} has no number of this name; it has {', '.join(sorted(numbers))}.",
                options=nearest(self.metric, numbers),
                remedy="Use `metric: return`, or let the environment tell the number in its last `info`.",
            )
        return float(numbers[self.metric])

    def _exhausted(self, kept: int, wanted: int, played: int, batches: int) -> NoSignal:
        return NoSignal(
            where="strategy: dynamic_sampling",
            what=f"after {batches} batches {kept} of {played} groups differ in `{self.metric}`, and {wanted} are "
            "wanted: nearly all tasks are always solved, or never.",
            remedy="Do one of these:\n"
            "  • tasks of other difficulty, or a better warm start,\n"
            "  • a larger `rollout.group` or a smaller `rollout.tasks`, or\n"
            "  • a higher `strategy.dynamic_sampling.max_batches` (0: no limit).",
        )


def _groups(played: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories by group, in the order of the first of each."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.group, []).append(trajectory)
    return list(groups.values())


# ---- what was played, under another prompt ------------------------------------------------------------------
Opened = Callable[[str, Hashable], Session]  # agent, key → a session to tell it to


def retold(trajectory: Trajectory, opened: Opened, *, instruction: str | None, **info: float) -> Trajectory | None:
    """The same actions after prompts that `opened` makes, under this instruction (None: under none).

    Args:
        opened: gives a fresh session of an agent; `key` names agent and episode as the runner does.
        info: numbers for every step, as columns of the table.

    Returns: a trajectory with `foreign` 1 on steps whose prompt is not the one they were sampled with; None, if it
        does not fit the model's context.
    """
    sessions: dict[str, Session] = {}
    steps: list[Step] = []
    try:
        for step in trajectory.steps:
            if step.agent not in sessions:
                sessions[step.agent] = opened(step.agent, (trajectory.group, trajectory.sample, step.agent))
            observation = replace(step.observation, instruction=instruction)
            taken = sessions[step.agent].replay(observation, step.action)
            read = replace(step, observation=observation, prompt=taken.prompt, segment=taken.segment)
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
    """Sessions of the run's roles. `contexts`: per agent, another context than its role's."""

    def opened(agent: str, key: Hashable) -> Session:
        role = setup.role(agent)
        return role.policy.session(context=contexts.get(agent, role.context), sampling=Sampling(), key=key)

    return opened
