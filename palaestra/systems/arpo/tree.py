"""Trees: a group of trajectories that grows turn by turn, with branches that start in the middle of others.

All running trajectories of a tree wait for each other after each answer of their environments, so that the tree does
not depend on their speed. Different trees do not wait for each other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from palaestra.data import Play, Step, Trajectory, derive
from palaestra.errors import PalaestraError
from palaestra.rollout.branches import Branch, BranchingEpisode
from palaestra.rollout.strategies import RolloutContext


class Rule(Protocol):
    """The rule for branches; `branching.Branching` describes its members."""

    beam: int
    balance: float | None

    def probability(self, rise: float, streak: int = 0) -> float: ...
    def at_the_root(self, size: int, root: float, tool: float) -> int: ...
    def uncertainty(self, steps: Sequence[Step], policies: Any) -> float: ...


@dataclass(slots=True, eq=False)
class Path:
    """One trajectory of a tree.

    Attributes:
        play: how it is played.
        root: sample of the initial trajectory that it comes from.
        task: the asyncio task that plays it.
        trajectories: its result, once it is over.
        episode: its episode while it waits after an answer.
        released: the future that it waits for.
        measured: number of acts whose uncertainty has been measured.
        first: their uncertainty at its first answer; None before that.
        streak: number of its latest answers in a row at which something branched off.
    """

    play: Play
    root: int
    task: asyncio.Task[list[Trajectory]] | None = None
    trajectories: list[Trajectory] = field(default_factory=list)
    episode: BranchingEpisode | None = None
    released: asyncio.Future[None] | None = None
    measured: int = 0
    first: float | None = None
    streak: int = 0

    @property
    def over(self) -> bool:
        """Whether its trajectory has ended."""
        return self.task is not None and self.task.done()

    @property
    def waiting(self) -> bool:
        """Whether it waits after an answer."""
        return not self.over and self.released is not None and not self.released.done()


class Tree:
    """One group.

    Args:
        plays: plays of the group; each becomes one trajectory.
        rollout: plays the trajectories.
        rule: decides when to branch.

    Attributes:
        paths: all trajectories, in the order in which they began.
        initial: how many started at the task from the beginning.
        fresh: how many started at the task because all others had ended.
        uncertainties: (H, H − H₀) at each answer.
    """

    def __init__(self, plays: Sequence[Play], rollout: RolloutContext, rule: Rule) -> None:
        self._left, self._rollout, self._rule = deque(plays), rollout, rule
        self._size, self._moved, self._closed = len(plays), asyncio.Event(), False
        self.paths: list[Path] = []
        self.initial, self.fresh = 0, 0
        self.uncertainties: list[tuple[float, float]] = []

    async def grow(self) -> list[Trajectory]:
        """Play the whole group."""
        try:
            root, tool = 0.0, 0.0
            if self._rule.balance is not None:
                root, tool = await self._probe()
            self.initial = min(self._rule.at_the_root(self._size, root, tool), self._size)
            while len(self.paths) < self.initial:
                self._start(self._left.popleft())
            await self._play()
            while self._left:
                self.fresh += 1
                self._start(self._left.popleft())
                await self._play()
        finally:
            for path in self.paths:
                if path.task is not None:
                    path.task.cancel()
        return [trajectory for path in self.paths for trajectory in path.trajectories]

    async def _probe(self) -> tuple[float, float]:
        """Play a trajectory without branches; return the uncertainty of its first act and the mean over later acts."""
        self._closed = True
        path = self._start(self._left.popleft())
        await self._play()
        self._closed = False
        steps = [step for trajectory in path.trajectories for step in trajectory.steps]
        acts = [self._rule.uncertainty([step], self._rollout.setup.policies) for step in steps]
        first = acts[0] if acts else 0.0
        return first, sum(acts[1:]) / len(acts[1:]) if acts[1:] else first

    def _start(self, play: Play, left: Path | None = None) -> Path:
        """Start a trajectory at the task, or as a branch of another one."""
        path = Path(play, root=play.sample if left is None else left.root)
        if left is not None:
            path.measured, path.first, path.streak = left.measured, left.first, left.streak

        async def pause(episode: BranchingEpisode) -> None:
            path.episode, path.released = episode, asyncio.get_running_loop().create_future()
            self._moved.set()
            await path.released

        start = None if play.branch is None else play.branch.start
        path.play = dataclasses.replace(play, branch=Branch(start=start, pause=pause))
        path.task = asyncio.ensure_future(self._rollout.collect([path.play]))
        path.task.add_done_callback(lambda _: self._moved.set())
        self.paths.append(path)
        return path

    async def _play(self) -> None:
        """Until all have ended: wait until each one waits or has ended, branch, and let them go on."""
        while True:
            waiting = [path for path in self.paths if path.waiting]
            running = [path for path in self.paths if not path.over and not path.waiting]
            for path in self.paths:
                if path.over and not path.trajectories and path.task is not None:
                    path.trajectories = path.task.result()  # raises the error of a task that failed
            if not waiting and not running:
                return
            if not running:
                await self._branch(waiting)
                continue
            self._moved.clear()
            await self._moved.wait()

    async def _branch(self, waiting: Sequence[Path]) -> None:
        """Let branches start at each waiting trajectory, in the order of samples, and let the trajectories go on."""
        for path in sorted(waiting, key=lambda path: path.play.sample):
            if not path.waiting or path.episode is None:  # its time ran out in the meantime
                continue
            fault: PalaestraError | None = None
            rise = self._measure(path, path.episode)
            try:
                await self._leave(path, path.episode, rise)
            except PalaestraError as error:
                fault = error
            if path.released is not None and not path.released.done():
                path.released.set_result(None) if fault is None else path.released.set_exception(fault)
            path.episode = None

    def _measure(self, path: Path, episode: BranchingEpisode) -> float:
        """Return H − H₀ for the acts since the last answer."""
        steps = episode.trajectory.steps
        now = self._rule.uncertainty(steps[path.measured :], self._rollout.setup.policies)
        path.measured = len(steps)
        path.first = now if path.first is None else path.first
        self.uncertainties.append((now, now - path.first))
        return now - path.first

    async def _leave(self, path: Path, episode: BranchingEpisode, rise: float) -> None:
        """Start new trajectories where this one waits."""
        chance = 0.0 if self._closed else self._rule.probability(rise, path.streak)
        place = (path.play.group, path.play.sample, len(episode.trajectory.steps))
        draw = np.random.default_rng(derive(self._rollout.seed, "branch", *place))
        count = sum(draw.random() < chance for _ in range(self._rule.beam - 1))
        count = min(count, len(self._left))
        path.streak = path.streak + 1 if count else 0
        for _ in range(count):
            play = await episode.fork(self._left[0])
            self._left.popleft()
            self._start(play, path)
