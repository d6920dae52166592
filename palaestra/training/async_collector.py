"""The asynchronous collector: episodes are played all the time, in a thread of their own, while the policies learn.

Of batch b of the plan an iteration v may have begun only if b ≤ v + `max_staleness`; so nothing that is learned from
was drawn by weights older than that, the queue is bounded, and rollouts wait where learning is slow. New weights are
handed over between two tokens: an episode under way goes on with them.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from palaestra.data import Batch, Play, RunSetup, Trajectory, derive
from palaestra.data.protocols import Experience, Sampling
from palaestra.data.table import token_count
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import declared, register
from palaestra.rollout.strategies import RolloutContext, called_per, play_through
from palaestra.store.journal import Journal, name_of
from palaestra.training.collector import Collector
from palaestra.training.settings import RunSettings

Result = TypeVar("Result")
SPACING = 10_000  # numbers between the further groups that strategies ask for in one batch


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """The plays of one task, under way or done.

    Attributes:
        batch: number of its batch in the plan. place: where it stands in the order in which groups were begun.
        ended: where it stands in the order in which they were done; −1 before.
    """

    batch: int
    place: int
    plays: list[Play]
    ended: int = -1
    kept: list[Trajectory] = field(default_factory=list)
    played: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The group of its plays."""
        return self.plays[0].group


@dataclass(frozen=True, slots=True)
class StrategyState:
    """The state of a strategy as checkpoints keep it: strategies change on one thread, checkpoints are another's."""

    held: Any
    on_its_thread: Callable[[Callable[[], Any]], Any]

    def state_dict(self) -> dict[str, Any]:
        """A copy, which goes on being what it was."""
        return self.on_its_thread(lambda: copy.deepcopy(self.held.state_dict()))  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was saved."""
        self.on_its_thread(lambda: self.held.load_state_dict(state))


def refuse_strategies(settings: RunSettings) -> None:
    """Raises: RecipeError, if a strategy must be called once an iteration: ahead of the updates each group is played
    by a call of its own; ContractError, as `called_per`."""
    for use in settings.strategy:
        if called_per(use.part.target) == "iteration":
            raise RecipeError(
                where=f"strategy: {use.name}, training.max_staleness: {settings.training.max_staleness}",
                what=f"`{use.name}` must be called once an iteration, and episodes that are played ahead of the "
                "updates are played group by group.",
                remedy="Set training.max_staleness=0, or leave the strategy out. A class of your own that needs one "
                'group at a time says so: `called_per = "group"`.',
            )


@register("experience", "rollout")
def rollout(setup: RunSetup) -> Collector | AsyncCollector:
    """Play episodes with the policies: in between the updates, or beside them (`training.max_staleness`)."""
    return AsyncCollector(setup) if setup.settings.training.max_staleness else Collector(setup)


class AsyncCollector(Experience):
    """Plays ahead of the updates by at most `training.max_staleness` batches.

    `training.stale: wait` gives iteration v the groups of batch v, waiting for the slowest of them while later
    batches go on; `drop` gives it the groups that were done first and throws away what has become older than the
    bound, which never waits for the slowest, and sees more of the short episodes.
    """

    def __init__(self, setup: RunSetup) -> None:
        """Raises: ContractError, if the runner cannot play in an event loop of its own; RecipeError, if a strategy
        cannot be called group by group."""
        settings: RunSettings = setup.settings
        refuse_strategies(settings)
        assert setup.folder is not None
        self._settings, self._journal = settings, Journal(setup.folder)
        self._bound, self._drops = settings.training.max_staleness, settings.training.stale == "drop"
        self._groups: dict[str, Group] = {}  # begun and not yet taken, by name
        self._taken: set[str] = set()  # groups taken since the last checkpoint
        self._obsolete: set[str] | None = None  # groups taken before it; None: there is none, so all are another run's
        self._planned = self._begun = self._done = self._replaced = 0
        self._changed = threading.Condition(threading.RLock())
        self._fault: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._collect: Callable[..., Awaitable[list[Trajectory]]] | None = None
        self._finish: asyncio.Event | None = None
        self._inner = Collector(setup, copies=True)
        if not declared(self._inner.acting.runner, "opens"):
            raise ContractError(
                where=f"rollout.runner: {settings.rollout.runner.name}",
                what="it plays in lock step, and `training.max_staleness` wants episodes that go on by themselves.",
                remedy="Set rollout.runner=episodes, or training.max_staleness=0.",
            )

    # ---- what the loop calls --------------------------------------------------------------------------------
    def collect(self, number: int) -> Batch:
        """The episodes of this iteration, as soon as there are enough; meanwhile others go on.

        Raises: whatever a strategy or a runner raised.
        """
        self._start()
        last = min(
            number + self._bound + 1, self._settings.training.iterations
        )  # what nobody learns from is not played
        for batch in range(self._planned, last):
            self._begin(batch)
        dropped: list[Group] = []
        with self._changed:
            groups = self._chosen(number)
            while groups is None:
                self._changed.wait(timeout=1.0)  # a limit, so that Ctrl-C is heard
                if self._fault is not None:
                    raise self._fault
                dropped += self._replace_stale(number)
                groups = self._chosen(number)
            for group in groups:
                self._forget(group)
            waiting = [group for group in self._groups.values() if group.ended >= 0]
            queue = {"queue/ready": float(len(waiting)), "queue/under_way": float(len(self._groups) - len(waiting))}
        kept = [t for group in groups for t in group.kept]
        played = [t for group in (*groups, *dropped) for t in group.played]
        metrics = _mean([group.metrics for group in groups]) | queue | self._staleness(kept)
        return Batch(kept=kept, played=played, metrics=metrics | {"stale/dropped": float(len(dropped))})

    @property
    def instruction(self) -> str | None:  # type: ignore[override]
        """What a strategy that holds an instruction says to every policy in evaluations."""
        return self._inner.instruction

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """Let the sampler learn, and hand the learners' weights over; returns when the copies have them."""
        metrics = self._inner.learn(batch, number)
        self._on_playing_thread(self._inner.follow)
        return metrics

    def stateful(self) -> dict[str, Any]:
        """As of a collector that plays in between; strategies are read on the thread that calls them.

        It comes back last itself: with its state it begins to play, by the others.
        """
        held = self._inner.stateful()
        del held["supply"]
        of_thread = {
            name: StrategyState(one, self._on_playing_thread)
            for name, one in held.items()
            if name.startswith("strategy.")
        }
        return held | of_thread | {"supply": self}

    def _on_playing_thread(self, act: Callable[[], Result]) -> Result:
        """What `act` returns, called between two steps of the thread that plays; here, where no such thread lives.

        Raises: what has ended that thread; what `act` raises.
        """
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            return act()

        async def acted() -> Result:
            return act()

        future = asyncio.run_coroutine_threadsafe(acted(), self._loop)
        while True:
            try:
                return future.result(timeout=1.0)
            except CancelledError:
                raise self._gone() from None
            except TimeoutError:
                if future.done():
                    return future.result()
                if not self._thread.is_alive():
                    raise self._gone() from None

    def _gone(self) -> BaseException:
        return self._fault or RuntimeError("the thread that plays has ended")

    def close(self) -> None:
        """Stop playing; episodes under way are given up, those that are done stand in the journal."""
        if self._loop is not None and self._thread is not None and self._finish is not None:
            self._loop.call_soon_threadsafe(self._finish.set)
            self._thread.join()
        self._inner.close()

    def state_dict(self) -> dict[str, Any]:
        """Which groups of the plan are still to be learned from; their episodes stand in the journal.

        The journal forgets only what the checkpoint before this one needs no more: a kill may leave that as the newest.
        """
        with self._changed:
            obsolete = self._journal.groups if self._obsolete is None else self._obsolete
            self._journal.keep(self._journal.groups - (obsolete - self._groups.keys()))
            self._obsolete, self._taken = self._taken, set()
            return {"planned": self._planned, "groups": {g.name: g.batch for g in self._groups.values()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin again what was under way; what the journal holds is not played twice."""
        self._start()
        self._planned = int(state["planned"])
        before = {play.group for batch, plays in self._journal.plans.items() if batch < self._planned for play in plays}
        self._obsolete = before - state["groups"].keys()
        for name, batch in state["groups"].items():
            plays = [play for play in self._journal.plans.get(batch, []) if play.group == name]
            if plays:
                self._submit(batch, plays)

    # ---- plan -----------------------------------------------------------------------------------------------
    def _begin(self, batch: int) -> None:
        """Begin the groups of a batch; the journal knows those that were planned before the run was stopped."""
        plays = self._journal.plans.get(batch)
        if plays is None:
            plays = self._inner.plays(batch)
            with self._changed:
                self._journal.plan(batch, plays)
        for name in dict.fromkeys(play.group for play in plays):
            self._submit(batch, [play for play in plays if play.group == name])
        self._planned = batch + 1

    def _submit(self, batch: int, plays: list[Play]) -> None:
        group = Group(batch=batch, place=self._begun, plays=plays)
        self._begun += 1
        with self._changed:
            self._groups[group.name] = group
        assert self._loop is not None
        self._report(asyncio.run_coroutine_threadsafe(self._play(group), self._loop))

    def _chosen(self, step: int) -> list[Group] | None:
        """The groups of this iteration, in the order of the plan, or None if some are still under way."""
        done = [group for group in self._groups.values() if group.ended >= 0]
        if not self._drops:
            of_batch = [group for group in self._groups.values() if group.batch == step]
            return None if any(group.ended < 0 for group in of_batch) else sorted(of_batch, key=lambda g: g.place)
        done = [group for group in done if self._lag(group.kept) <= self._bound]
        if len(done) < self._settings.rollout.tasks:
            return None
        return sorted(sorted(done, key=lambda g: g.ended)[: self._settings.rollout.tasks], key=lambda g: g.place)

    def _replace_stale(self, step: int) -> list[Group]:
        """Give up groups that are done and too old, and begin as many others."""
        if not self._drops:
            return []
        old = [g for g in self._groups.values() if g.ended >= 0 and self._lag(g.kept) > self._bound]
        for group in old:
            self._forget(group)
            self._replaced += 1
            plays = self._inner.more(step, first=SPACING * (self._replaced + self._settings.rollout.tasks))(1)
            self._journal.plan(step, [*self._journal.plans.get(step, []), *plays])
            self._submit(step, plays)
        return old

    def _forget(self, group: Group) -> None:
        del self._groups[group.name]
        self._taken.add(group.name)

    # ---- how old --------------------------------------------------------------------------------------------
    def _lags(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """How many versions behind the learners each sampled token is: int64 (tokens,)."""
        lags = [np.zeros(0, np.int64)]
        for step in (step for trajectory in trajectories for step in trajectory.steps):
            policy = self._inner.setup.policies.get(step.policy)
            if policy is not None and policy.trainable:
                drawn = step.action.versions
                drawn = np.full(token_count(step), step.version) if drawn is None else drawn
                lags.append(policy.version - drawn.astype(np.int64))
        return np.concatenate(lags)

    def _lag(self, trajectories: Sequence[Trajectory]) -> int:
        return int(max(self._lags(trajectories), default=0))

    def _staleness(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Mean and largest age of what is learned from, and the share of tokens at each."""
        lags = self._lags(trajectories)
        if not len(lags):
            return {}
        shares = {f"staleness/{age}": float((lags == age).mean()) for age in range(self._bound + 1)}
        return {"staleness/mean": float(lags.mean()), "staleness/max": float(lags.max()), **shares}

    # ---- the thread that plays --------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._thread is not None:
            return
        self._inner.follow()
        ready = threading.Event()

        async def live() -> None:
            self._loop, self._finish = asyncio.get_running_loop(), asyncio.Event()
            async with self._inner.acting.runner.open() as collect:
                self._collect = collect
                ready.set()
                await self._finish.wait()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

        def run() -> None:
            try:
                asyncio.run(live())
            except BaseException as error:
                self._fail(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="rollouts", daemon=True)
        self._thread.start()
        ready.wait()
        if self._fault is not None:
            raise self._fault

    async def _play(self, group: Group) -> None:
        """Play one group through the strategies."""
        rollout = RolloutContext(
            more=self._inner.more(group.batch, first=SPACING * (1 + group.place % self._settings.rollout.tasks)),
            settings=self._settings.rollout,
            sampling=self._inner.acting.runner.sampling(),
            step=group.batch,
            seed=derive(self._settings.seed, "strategy", group.batch, group.place),
            setup=self._inner.acting,
        )
        kept = await play_through(self._inner.strategies, self._recorded)(group.plays, rollout)
        with self._changed:
            group.kept, group.played, group.metrics = kept, rollout.played, rollout.metrics
            group.ended, self._done = self._done, self._done + 1
            self._changed.notify_all()

    async def _recorded(self, plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
        """Play, but what was finished before; every finished episode goes to the journal at once."""

        async def one(play: Play) -> Trajectory:
            leaves_another = play.branch is not None and play.branch.start is not None  # in a tree that has grown anew
            known = self._journal.finished.get(name_of(play))
            if known is not None and not leaves_another:
                return known
            assert self._collect is not None
            (played,) = await self._collect([play], sampling)
            with self._changed:
                self._journal.finish(play, played)
            return played

        return list(await asyncio.gather(*(one(play) for play in plays)))

    def _report(self, future: Future[None]) -> None:
        """Note what ends a group other than its end."""

        def check(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._fail(error)

        future.add_done_callback(check)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._fault = self._fault or error
            self._changed.notify_all()


def _mean(of_groups: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for metrics in of_groups for name in metrics})
    return {name: float(np.mean([metrics[name] for metrics in of_groups if name in metrics])) for name in names}
