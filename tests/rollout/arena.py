"""Strategies in an environment of code to repair, with a tiny policy, for tests of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palaestra.chat import LatestOnly
from palaestra.data import Play, RunSetup, Trajectory
from palaestra.envs.probes.codefix import CodeFix
from palaestra.rollout.programs import play as playing
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext

AGENT = "programmer"


class Arena:
    """Strategies on CodeFix with a tiny policy that has learned nothing."""

    def __init__(self, policy: Any, *, context: Any = None, **options: Any) -> None:
        self.source, self.settings = CodeFix(**options), RolloutSettings(max_turns=4, response_tokens=5)
        self.setup = RunSetup(
            environment_name="codefix",
            make_environment=lambda: CodeFix(**options),
            roles={"*": Role(policy=policy, context=context or LatestOnly())},
            program=playing,
            environment_options=options,
            source=self.source,
        )
        self.runner = EpisodeRunner(self.setup, self.settings)

    def plays(self, groups: int = 2, samples: int = 2, first: int = 0, **more: Any) -> list[Play]:
        tasks = self.source.tasks("train", first + groups, 0)[first:]
        return [
            Play(task=task, group=f"g{first + i}", sample=sample, seed=10 * (first + i) + sample, **more)
            for i, task in enumerate(tasks)
            for sample in range(samples)
        ]

    def rollout(self, step: int = 0, source: Any = None) -> RolloutContext:
        return RolloutContext(
            more=lambda groups: self.plays(groups, first=50),
            settings=self.settings,
            sampling=self.runner.sampling(),
            step=step,
            seed=7 + step,
            setup=self.setup if source is None else replace(self.setup, source=source),
        )

    def run(self, strategy: Any, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        return self.runner.perform(plays, [strategy], rollout)


def same(one: Sequence[Trajectory], other: Sequence[Trajectory]) -> bool:
    def told(trajectory: Trajectory) -> Any:
        steps = [(s.turn, s.prompt.tolist(), s.action.tokens.tolist(), s.segment, s.reward) for s in trajectory.steps]
        return trajectory.id, steps, trajectory.outcome

    return list(map(told, one)) == list(map(told, other))
