"""Second attempts: who failed tries again with a teacher's guidance; the policy learns from it without the guidance.

Knows plays, outcomes and an environment's `guidance` by protocol. Knows nothing of losses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.data import Play, StopReason, Trajectory, derive
from palaestra.data.abilities import require
from palaestra.errors import ContractError
from palaestra.registry import Fraction, register
from palaestra.rollout.strategies import RolloutContext, opening, retold

WHERE = "strategy: second_attempt"


@register("strategy", "second_attempt", uses=("tokens", "guidance"), source="arXiv 2506.11425")
class SecondAttempt:
    """Failed episodes are played again with guidance in the prompt; both attempts are in one group.

    Args:
        share: of the failed attempts that get guidance. 0: plain groups. Usual: 1.
        success_at: an outcome below this has failed. Usual: 1.
        keep_guidance: train on the prompt with the guidance. False: on the one without it, as evaluation has it.
        allow_leak: let guidance hold the whole answer (the environment's `reference`).

    The environment's method `guidance(trajectory, seed=…)` has seen the failed attempt. Where guidance was taken out,
    the column `foreign` is 1: what a response's prompt was when it was sampled and what it is in training differ, so
    `training.epochs` or `minibatches` above 1 recompute log-probabilities first, and `ppo_clip` has a bound of its own
    for such rows (`high_foreign`). Guidance is read, never written by the policy, so its tokens have no loss.

    Second attempts cost what they cost: compare by environment steps, not by iterations.

    Metrics: guidance/attempts (second ones per first one), guidance/before and guidance/after (share of the tasks with
    a success among first attempts, and among all), guidance/success (of second attempts).

    Raises: ContractError, if the environment has no `guidance`, or if it gives the answer away and `allow_leak` is off.
    """

    called_per = "group"
    provides = frozenset({"foreign", "guided"})  # columns that tables have with it

    def __init__(
        self,
        *,
        share: Fraction = 1.0,
        success_at: float = 1.0,
        keep_guidance: bool = False,
        allow_leak: bool = False,
    ) -> None:
        self._share, self._success_at = share, success_at
        self._keep, self._allow_leak = keep_guidance, allow_leak

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """First attempts, then the second attempts of those that failed."""
        first = await rollout.collect(plays)
        again = self._second(list(zip(plays, first, strict=True)), rollout)
        second = await rollout.collect([play for play, _ in again]) if again else []
        rollout.metrics |= self._metrics(first, second)
        kept = [self._kept(one, told, rollout) for one, (_, told) in zip(second, again, strict=True)]
        return [*first, *(one for one in kept if one is not None)]

    def _second(
        self, pairs: Sequence[tuple[Play, Trajectory]], rollout: RolloutContext
    ) -> list[tuple[Play, str | None]]:
        """Plays with guidance, numbered after the samples of their group, each with what it was told before."""
        size: dict[str, int] = defaultdict(int)
        for play, _ in pairs:
            size[play.group] = max(size[play.group], play.sample + 1)
        found = []
        for play, attempt in pairs:
            seed = derive(rollout.seed, "guidance", play.group, play.sample)
            if not self._failed(attempt) or np.random.default_rng(seed).random() >= self._share:
                continue
            text = self._guidance(attempt, rollout.setup.source, seed=seed)
            if text:
                guided = replace(
                    play,
                    sample=size[play.group] + play.sample,
                    seed=derive(play.seed, "second attempt"),
                    instruction=" ".join(filter(None, (play.instruction, text))),
                    info={**play.info, "guidance": text},
                )
                found.append((guided, play.instruction))
        return found

    def _failed(self, attempt: Trajectory) -> bool:
        return (
            attempt.stop is not StopReason.ERROR and attempt.outcome is not None and attempt.outcome < self._success_at
        )

    def _guidance(self, attempt: Trajectory, source: Any, *, seed: int) -> str | None:
        require(
            source,
            "guidance",
            where=WHERE,
            what=f"environment `{attempt.task.env}` has no teacher.",
            remedy="Give it the ability `guidance`: `guidance(trajectory, *, seed)` and `reference(task)`, or leave "
            "the strategy out.",
        )
        text: str | None = source.guidance(attempt, seed=seed)
        answer: str | None = source.reference(attempt.task)
        if text and answer and answer in text and not self._allow_leak:
            raise ContractError(
                where=f"{WHERE}, task {attempt.task.content_hash}",
                what=f"the guidance holds the whole answer: {text!r}.",
                remedy="Let the teacher say less, or set `allow_leak: true` to train on copied answers.",
            )
        return text

    def _kept(self, attempt: Trajectory, told: str | None, rollout: RolloutContext) -> Trajectory | None:
        """A second attempt as the update reads it; None, if it does not fit the context."""
        if self._keep or attempt.stop is StopReason.ERROR or not attempt.steps:
            for step in attempt.steps:
                step.mark(guided=1.0)
            return attempt
        return retold(attempt, opening(rollout.setup), instruction=told, guided=1.0)

    def _metrics(self, first: Sequence[Trajectory], second: Sequence[Trajectory]) -> dict[str, float]:
        def solved(attempts: Sequence[Trajectory]) -> float:
            best: dict[str, bool] = defaultdict(bool)
            for one in attempts:
                best[one.group] |= one.outcome is not None and one.outcome >= self._success_at
            return float(np.mean(list(best.values()))) if best else 0.0

        found = {
            "guidance/attempts": len(second) / max(len(first), 1),
            "guidance/before": solved(first),
            "guidance/after": solved([*first, *second]),
        }
        outcomes = [one.outcome >= self._success_at for one in second if one.outcome is not None]
        return found | ({"guidance/success": float(np.mean(outcomes))} if outcomes else {})
