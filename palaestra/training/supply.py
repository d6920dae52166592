"""Supply: where an iteration's episodes come from. Here: played when they are asked for, with the present weights.

Knows samplers, strategies and runners by protocol. Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from palaestra.data import Assignment, Trajectory, derive
from palaestra.rollout.field import Field, play_through
from palaestra.rollout.stage import Play
from palaestra.training.build import Bound, World
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


class Plans:
    """Which plays an iteration has: the sampler's tasks, each as a group."""

    def __init__(self, settings: RunSettings, source: Any, sampler: Bound) -> None:
        self._settings, self._source, self._sampler = settings, source, sampler

    def plays(self, step: int) -> list[Play]:
        """Of iteration `step`."""
        seed = self._settings.seed
        return self._groups(self._sampler(self._source, step, self._settings.rollout.tasks, seed), step, first=0)

    def more(self, step: int) -> Callable[[int], list[Play]]:
        """Gives further groups of iteration `step`, others at each call."""
        given = self._settings.rollout.tasks

        def supply(groups: int) -> list[Play]:
            nonlocal given
            seed = derive(self._settings.seed, "more", given)
            found = self._groups(self._sampler(self._source, step, groups, seed), step, first=given)
            given += groups
            return found

        return supply

    def learn(self, played: Sequence[Trajectory], step: int) -> dict[str, float]:
        """Let a sampler with state see how its tasks went; its metrics."""
        learn = self._sampler.can("learn")
        return dict(learn(played, step)) if learn is not None else {}

    def _groups(self, chosen: Sequence[Any], step: int, *, first: int) -> list[Play]:
        seed, rollout = self._settings.seed, self._settings.rollout
        return [
            Play(
                task=assignment.task,
                group=f"{step:06d}-{i:05d}",
                sample=sample,
                seed=derive(seed, "play", step, i, sample),
                turns=assignment.turns,
                instruction=assignment.instruction,
                info=assignment.info,
            )
            for i, assignment in enumerate(map(Assignment.of, chosen), start=first)
            for sample in range(rollout.group if assignment.samples is None else assignment.samples)
        ]


class Synchronous:
    """Plays an iteration's episodes when it comes, all with the weights it begins with."""

    def __init__(self, settings: RunSettings, world: World, plans: Plans, strategies: Sequence[Any]) -> None:
        self._settings, self._world, self._plans, self._strategies = settings, world, plans, strategies

    def take(self, step: int) -> Harvest:
        """The episodes of iteration `step`."""
        plays, runner = self._plans.plays(step), self._world.runner
        if not self._strategies:
            played = runner.collect(plays)
            return Harvest(kept=played, played=played)
        field = Field(
            supply=self._plans.more(step),
            settings=self._settings.rollout,
            sampling=runner.sampling(),
            policies=self._world.policies,
            step=step,
            seed=derive(self._settings.seed, "strategy", step),
            stage=self._world.stage,
            source=self._world.source,
        )
        kept = runner.perform(lambda collect: play_through(self._strategies, collect)(plays, field))
        return Harvest(kept=kept, played=field.played, metrics=field.metrics)

    def refresh(self) -> None:
        """Weights have changed: those who act are those who learn, so nothing is to be done."""

    def close(self) -> None:
        """Nothing is under way between two iterations."""
