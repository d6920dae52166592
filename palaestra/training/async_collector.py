"""The asynchronous collector: a thread plays episodes all the time, while the policies learn.

During iteration v, batch b of the plan may be started only if b ≤ v + `max_staleness`. So the update never learns from
tokens of older weights than that, and the number of batches that wait is limited. New weights are taken over between
two tokens, and running episodes continue with them.
"""

from __future__ import annotations

import asyncio
import copy
import json
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
from palaestra.process.terminal import say
from palaestra.registry import declared, register
from palaestra.rollout.strategies import RolloutContext, called_per, play_through
from palaestra.store.folder import JOURNAL
from palaestra.store.journal import Journal, name_of, play_from_json, play_to_json
from palaestra.training.collector import Collector
from palaestra.training.settings import RunSettings

Result = TypeVar("Result")
SPACING = 10_000  # distance between the numbers of further groups that two calls of strategies ask for


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """The plays of one task, under way or done.

    Attributes:
        batch: number of its batch in the plan. place: its number in the order in which groups were started.
        ended: its number in the order in which groups were finished; −1 while it is played.
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
        """The name of the group."""
        return self.plays[0].group


@dataclass(frozen=True, slots=True)
class StrategyState:
    """The state of a strategy for checkpoints, read and set on the thread that calls the strategy."""

    held: Any
    on_its_thread: Callable[[Callable[[], Any]], Any]

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state, which later calls do not change."""
        return self.on_its_thread(lambda: copy.deepcopy(self.held.state_dict()))  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.on_its_thread(lambda: self.held.load_state_dict(state))


def refuse_strategies(settings: RunSettings) -> None:
    """Refuse strategies that must be called once an iteration, since here each group is played by its own call.

    Raises: RecipeError; ContractError, as `called_per`.
    """
    for use in settings.strategy:
        if called_per(use.part.target) == "iteration":
            raise RecipeError(
                where=f"strategy: {use.name}, training.max_staleness: {settings.training.max_staleness}",
                what=f"`{use.name}` must be called once an iteration, but episodes that are played ahead of the "
                "updates are played group by group.",
                remedy="Set training.max_staleness=0, or leave the strategy out. A class of your own that needs only "
                'one group at a time declares it: `called_per = "group"`.',
            )


@register("experience", "rollout")
def rollout(setup: RunSetup) -> Collector | AsyncCollector:
    """Play episodes with the policies: between the updates, or during them if `training.max_staleness` is above 0."""
    return AsyncCollector(setup) if setup.settings.training.max_staleness else Collector(setup)


class AsyncCollector(Experience):
    """Plays ahead of the updates by at most `training.max_staleness` batches.

    With `training.stale: wait` iteration v gets the groups of batch v. It waits for the slowest of them while later
    batches are played. With `drop` it gets the groups that were finished first, and groups older than the bound are
    discarded. So it never waits for the slowest group, and it learns from more short episodes.
    """

    def __init__(self, setup: RunSetup) -> None:
        """Make the collector; it starts to play at the first `collect`.

        Raises: ContractError, if the runner cannot play in an event loop of its own; RecipeError, if a strategy cannot
            be called group by group.
        """
        settings: RunSettings = setup.settings
        refuse_strategies(settings)
        assert setup.folder is not None
        self._settings, self._journal = settings, Journal(setup.folder)
        self._bound, self._drops = settings.training.max_staleness, settings.training.stale == "drop"
        self._groups: dict[str, Group] = {}  # started and not yet given to an iteration, by name
        self._taken: set[str] = set()  # groups taken since the last checkpoint
        self._obsolete: set[str] | None = None  # groups taken before that checkpoint; None: there is no checkpoint yet
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
                what="it plays in lock step, but `training.max_staleness` needs episodes that run during the updates.",
                remedy="Set rollout.runner=episodes, or training.max_staleness=0.",
            )

    # ---- what the loop calls --------------------------------------------------------------------------------
    def collect(self, number: int) -> Batch:
        """Wait for the episodes of this iteration and return them, while others are played.

        Raises: any error of a strategy or of the runner.
        """
        self._start()
        last = min(
            number + self._bound + 1, self._settings.training.iterations
        )  # no iteration learns from later batches
        for batch in range(self._planned, last):
            self._begin(batch)
        dropped: list[Group] = []
        with self._changed:
            groups = self._chosen(number)
            while groups is None:
                self._changed.wait(timeout=1.0)  # a limit, so that Ctrl-C works
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
        """The instruction of a strategy that has one; evaluations give it to every policy."""
        return self._inner.instruction

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """Let the sampler learn, and give the learners' weights to the copies. Returns when the copies have them."""
        metrics = self._inner.learn(batch, number)
        self._on_playing_thread(self._inner.follow)
        return metrics

    def stateful(self) -> dict[str, Any]:
        """As `Collector.stateful`; the state of strategies is read on the thread that calls them.

        The collector itself is loaded last, because it starts to play then and needs the others' states.
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
        """Call `act` on the thread that plays, or here if no such thread runs, and return its result.

        Raises: the error that ended that thread; any error of `act`.
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
        """Stop playing. Running episodes are given up; finished ones are in the journal."""
        if self._loop is not None and self._thread is not None and self._finish is not None:
            self._loop.call_soon_threadsafe(self._finish.set)
            self._thread.join()
        self._inner.close()

    def state_dict(self) -> dict[str, Any]:
        """The groups that no iteration has learned from yet. Their episodes are in the journal.

        The journal keeps what the previous checkpoint needs, since that is the newest one if the run is killed now.
        """
        with self._changed:
            obsolete = self._journal.groups if self._obsolete is None else self._obsolete
            self._journal.keep(self._journal.groups - (obsolete - self._groups.keys()))
            self._obsolete, self._taken = self._taken, set()
            return {
                "planned": self._planned,
                "groups": {g.name: g.batch for g in self._groups.values()},
                "journal": self._journal.identity,
                "plays": json.dumps([[play_to_json(play) for play in g.plays] for g in self._groups.values()]),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the unfinished groups again. Episodes in the journal are not played twice.

        A line on the terminal says what the journal lacks. It is played again.
        """
        identity = state.get("journal")  # checkpoints of earlier versions have none
        if identity is not None and not self._journal.belongs_to(identity):
            say(f"{JOURNAL} is missing, damaged, or of another run; its episodes are played again")
        elif self._journal.left_out:
            say(f"{JOURNAL}: {self._journal.left_out} of its lines are damaged; their episodes are played again")
        self._start()
        self._planned = int(state["planned"])
        before = {play.group for batch, plays in self._journal.plans.items() if batch < self._planned for play in plays}
        self._obsolete = before - state["groups"].keys()
        held = [[play_from_json(play) for play in plays] for plays in json.loads(state.get("plays", "[]"))]
        of_group = {plays[0].group: plays for plays in held}
        for name, batch in state["groups"].items():
            planned = [play for play in self._journal.plans.get(batch, []) if play.group == name]
            if plays := planned or of_group.get(name):
                self._submit(batch, plays)

    # ---- plan -----------------------------------------------------------------------------------------------
    def _begin(self, batch: int) -> None:
        """Start the groups of a batch, with the plays of the journal if it was planned before the run stopped."""
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
        """The groups of this iteration, in the order of the plan; None if some are not finished."""
        done = [group for group in self._groups.values() if group.ended >= 0]
        if not self._drops:
            of_batch = [group for group in self._groups.values() if group.batch == step]
            return None if any(group.ended < 0 for group in of_batch) else sorted(of_batch, key=lambda g: g.place)
        done = [group for group in done if self._lag(group.kept) <= self._bound]
        if len(done) < self._settings.rollout.tasks:
            return None
        return sorted(sorted(done, key=lambda g: g.ended)[: self._settings.rollout.tasks], key=lambda g: g.place)

    def _replace_stale(self, step: int) -> list[Group]:
        """Discard finished groups that are too old, and start as many others."""
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

    # ---- staleness ------------------------------------------------------------------------------------------
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
        """Mean and largest staleness of the tokens of an update, and the share of tokens at each value."""
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
        """Play the plays that are not in the journal. Each finished episode is written to the journal at once."""

        async def one(play: Play) -> Trajectory:
            leaves_another = play.branch is not None and play.branch.start is not None  # its parent was played again
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
        """Record the error if playing a group fails."""

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
