"""Supply: where an iteration's episodes come from. Here: they are played when they are asked for.

Knows samplers, strategies and runners by protocol. Knows no method.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from palaestra.data import Play, RunSetup, Trajectory, derive
from palaestra.rollout.strategies import RolloutContext
from palaestra.training.actors import Actors, Weights
from palaestra.training.bound import Bound
from palaestra.training.settings import RunSettings


@dataclass(slots=True, kw_only=True)
class Harvest:
    """Episodes for one iteration.

    Attributes:
        kept: what the update learns from. played: all that was spent for it, kept or not.
        metrics: what strategies and the supply itself say.
    """

    kept: list[Trajectory]
    played: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)


class Supply(Protocol):
    """Gives iterations their episodes. With `state_dict` and `load_state_dict` it is kept in checkpoints."""

    def take(self, step: int) -> Harvest:
        """The episodes of iteration `step`."""
        ...

    def refresh(self) -> None:
        """The policies have other weights now."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class Plans:
    """Which plays an iteration has: the sampler's tasks, each as a group."""

    def __init__(self, settings: RunSettings, source: Any, sampler: Bound) -> None:
        self._settings, self._source, self._sampler = settings, source, sampler
        self._alone = threading.Lock()  # a supply may ask from a thread of its own

    def plays(self, step: int) -> list[Play]:
        """Of iteration `step`."""
        return self._drawn(step, self._settings.rollout.tasks, self._settings.seed, first=0)

    def more(self, step: int, *, first: int | None = None) -> Callable[[int], list[Play]]:
        """Gives further groups of iteration `step`, others at each call.

        Args:
            first: number of the first of them; None: they follow those of the iteration itself.
        """
        given = self._settings.rollout.tasks if first is None else first

        def supply(groups: int) -> list[Play]:
            nonlocal given
            found = self._drawn(step, groups, derive(self._settings.seed, "more", given), first=given)
            given += groups
            return found

        return supply

    def learn(self, played: Sequence[Trajectory], step: int) -> dict[str, float]:
        """Let a sampler with state see how its tasks went; its metrics."""
        learn = self._sampler.can("learn")
        with self._alone:
            return dict(learn(played, step)) if learn is not None else {}

    def _drawn(self, step: int, count: int, drawn_by: int, *, first: int) -> list[Play]:
        with self._alone:
            chosen = self._sampler(self._source, step, count, drawn_by)
        seed, rollout = self._settings.seed, self._settings.rollout
        return [
            replace(play, group=f"{step:06d}-{i:05d}", sample=sample, seed=derive(seed, "play", step, i, sample))
            for i, play in enumerate(map(Play.of, chosen), start=first)
            for sample in range(rollout.group if play.samples is None else play.samples)
        ]


class Synchronous:
    """Plays an iteration's episodes when it comes, all with the weights it begins with."""

    def __init__(self, settings: RunSettings, setup: RunSetup, plans: Plans, strategies: Sequence[Any]) -> None:
        self._settings, self._setup, self._plans, self._strategies = settings, setup, plans, strategies

    def take(self, step: int) -> Harvest:
        """The episodes of iteration `step`."""
        plays, runner = self._plans.plays(step), self._setup.runner
        if not self._strategies:
            played = runner.collect(plays)
            return Harvest(kept=played, played=played)
        rollout = RolloutContext(
            supply=self._plans.more(step),
            settings=self._settings.rollout,
            sampling=runner.sampling(),
            step=step,
            seed=derive(self._settings.seed, "strategy", step),
            setup=self._setup,
        )
        kept = runner.perform(plays, self._strategies, rollout)
        played = sorted(rollout.played, key=lambda t: (t.group, t.sample))  # whoever ended first
        return Harvest(kept=kept, played=played, metrics=rollout.metrics)

    def refresh(self) -> None:
        """Weights have changed: those who act are those who learn, so nothing is to be done."""

    def close(self) -> None:
        """Nothing is under way between two iterations."""


class Apart:
    """Plays like `Synchronous`, but with weights that are not those of the learners: `training.lag` updates old, and
    with noise (`training.actor_noise`) as an engine of low precision has it.

    What age and mismatch do to learning can so be studied without a clock, with numbers that repeat exactly.
    """

    def __init__(self, settings: RunSettings, setup: RunSetup, plans: Plans, strategies: Sequence[Any]) -> None:
        self._actors = Actors(settings, setup)
        self._inner, self._settings = Synchronous(settings, self._actors.setup, plans, strategies), settings
        self._past: deque[Weights] = deque(maxlen=settings.training.lag + 1)

    def take(self, step: int) -> Harvest:
        """The episodes of iteration `step`; the first ones are played with the weights of the start."""
        if not self._past:
            self.refresh()
        noise = self._settings.training.actor_noise
        self._actors.follow(self._past[0], again=noise > 0)
        if noise:
            self._actors.disturb(noise, seed=derive(self._settings.seed, "actors", step))
        return self._inner.take(step)

    def refresh(self) -> None:
        """Note the learners' weights."""
        self._past.append(self._actors.weights())

    def close(self) -> None:
        """End the runner's workers."""
        self._actors.close()

    def state_dict(self) -> dict[str, Any]:
        """The weights of the last updates."""
        return {"past": [{n: [version, dict(state)] for n, (version, state) in w.items()} for w in self._past]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        self._past.clear()
        self._past.extend({n: (int(kept[0]), kept[1]) for n, kept in w.items()} for w in state["past"])
