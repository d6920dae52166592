"""The strategy that repeats failed attempts with a teacher's guidance in the prompt."""

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
    """Play failed episodes again with guidance in the prompt; both attempts are in one group.

    Args:
        share: share of the failed attempts that get guidance. 0: plain groups. Usual: 1.
        success_at: an attempt with an outcome below this has failed, and so has one without an outcome that a limit
            cut off. Usual: 1.
        keep_guidance: true trains on the prompt with the guidance; false removes the guidance first, as in evaluation.
        allow_leak: let guidance contain the whole answer (the environment's `reference`).

    The environment's method `guidance(trajectory, seed=…)` gets the failed attempt and returns the text. Where guidance
    is removed, the prompt in training differs from the prompt that the response was sampled with, and the column
    `foreign` is 1. Therefore `training.epochs` or `minibatches` above 1 compute the log-probabilities again first, and
    `ppo_clip` has its own bound for such rows (`high_foreign`). Guidance is part of the prompt, so its tokens have no
    loss.

    An attempt that a limit cuts has no outcome. Give the reward `cut_outcome`, where a part reads outcomes.

    Second attempts use environment steps of their own: compare by environment steps, not by iterations.

    Metrics: guidance/attempts (second attempts per first attempt), guidance/before and guidance/after (share of the
        tasks with a success among the first attempts, and among all), guidance/success (share of the second attempts
        that succeed).

    Raises: ContractError, if the environment has no `guidance`, or if the guidance contains the answer and `allow_leak`
        is false.
    """

    called_per = "group"
    provides = frozenset({"foreign", "guided"})  # columns that this strategy adds to tables

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
        """Play the first attempts, then the second attempts of those that failed."""
        first = await rollout.collect(plays)
        again = self._second(list(zip(plays, first, strict=True)), rollout)
        second = await rollout.collect([play for play, _ in again]) if again else []
        rollout.metrics |= self._metrics(first, second)
        kept = [self._kept(one, told, rollout) for one, (_, told) in zip(second, again, strict=True)]
        return [*first, *(one for one in kept if one is not None)]

    def _second(
        self, pairs: Sequence[tuple[Play, Trajectory]], rollout: RolloutContext
    ) -> list[tuple[Play, str | None]]:
        """Plays with guidance, numbered after the samples of their group, each with its earlier instruction."""
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
        if attempt.outcome is None:
            return attempt.stop.cut
        return attempt.stop is not StopReason.ERROR and attempt.outcome < self._success_at

    def _guidance(self, attempt: Trajectory, source: Any, *, seed: int) -> str | None:
        require(
            source,
            "guidance",
            where=WHERE,
            what=f"environment `{attempt.task.env}` gives no guidance.",
            remedy="Give it the ability `guidance`: `guidance(trajectory, *, seed)` and `reference(task)`, or remove "
            "the strategy from the recipe.",
        )
        text: str | None = source.guidance(attempt, seed=seed)
        answer: str | None = source.reference(attempt.task)
        if text and answer and answer in text and not self._allow_leak:
            raise ContractError(
                where=f"{WHERE}, task {attempt.task.content_hash}",
                what=f"the guidance contains the whole answer: {text!r}.",
                remedy="Let `guidance` say less, or set `allow_leak: true` to train on copied answers.",
            )
        return text

    def _kept(self, attempt: Trajectory, told: str | None, rollout: RolloutContext) -> Trajectory | None:
        """The second attempt that the update reads; None if it does not fit the context."""
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
