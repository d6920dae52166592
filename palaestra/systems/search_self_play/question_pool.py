"""The strategy `question_pool`: where a proposed question does not count, solvers get one that was asked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palaestra.data import Play, StopReason, Task, Trajectory, derive
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.rollout.strategies import RolloutContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question that counts: the task in which it was asked, its words and its answer."""

    env: str
    seed: int
    params: dict[str, Any]
    words: tuple[str, ...]
    answer: str

    @property
    def task(self) -> Task:
        """The task of answering it."""
        return Task(
            env=self.env, seed=self.seed, params={**self.params, "question": list(self.words), "answer": self.answer}
        )


@register("strategy", "question_pool", source="arXiv 2510.18821")
class QuestionPool:
    """Replace questions that do not count by earlier valid ones, so that the solver's share of a batch stays the same.

    For each episode whose question does not count, `attempts` further plays are made on a question of the pool.
    Questions are sampled without replacement as long as there are enough. The further plays are a group of their own,
    in which only the solver acts. Every `every` iterations all but a share `keep` of the pool is dropped, the oldest
    first, because questions that were hard become easy.

    Args:
        attempts: of the solver on a question from the pool. Usual: as many as the environment has.
        every: iterations between two drops. Higher: more questions to choose from, older ones. Usual: 10.
        keep: the share that a drop leaves. Usual: 0.

    The environment must give `valid_questions`, `asked` and `answer` in its `info`, and accept `question` and `answer`
    as parameters of a task. Metrics: pool/size, pool/reused (questions of this iteration that came from the pool).
    """

    called_per = "iteration"  # the questions of an iteration fill the pool before the next iteration samples from it

    def __init__(self, *, attempts: PositiveInt = 4, every: PositiveInt = 10, keep: Fraction = 0.0) -> None:
        self._attempts, self._every, self._keep = attempts, every, keep
        self.pool: list[Asked] = []

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play, replace questions that do not count, and add those that count to the pool."""
        if rollout.step and rollout.step % self._every == 0:
            kept = round(self._keep * len(self.pool))
            self.pool = self.pool[len(self.pool) - kept :]
        first = await rollout.collect(plays)
        again = self._again(_pairs(plays, first), rollout.seed)
        second = await rollout.collect(again) if again else []
        for one in first:
            asked = _asked(one)
            if asked is not None and asked not in self.pool:
                self.pool.append(asked)
        rollout.metrics |= {"pool/size": float(len(self.pool)), "pool/reused": len(again) / self._attempts}
        return [*first, *second]

    def _again(self, pairs: Sequence[tuple[Play, Trajectory]], seed: int) -> list[Play]:
        played = [(play, one) for play, one in pairs if one.stop is not StopReason.ERROR]
        empty = [play for play, one in played if not one.info.get("valid_questions", 1)]
        if not self.pool or not empty:
            return []
        draw, places = np.random.default_rng(derive(seed, "pool")), list[int]()
        while len(places) < len(empty):
            places += draw.permutation(len(self.pool)).tolist()
        return [
            replace(
                play,
                task=self.pool[place].task,
                group=f"{play.group}-{play.sample}-again",
                sample=sample,
                seed=derive(play.seed, "again", sample),
            )
            for play, place in zip(empty, places, strict=False)
            for sample in range(self._attempts)
        ]

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The pool."""
        return {"pool": [[one.env, one.seed, one.params, list(one.words), one.answer] for one in self.pool]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the pool."""
        self.pool = [
            Asked(env=env, seed=seed, params=dict(params), words=tuple(words), answer=answer)
            for env, seed, params, words, answer in state["pool"]
        ]


def _pairs(plays: Sequence[Play], played: Sequence[Trajectory]) -> list[tuple[Play, Trajectory]]:
    """Each play with its trajectory; an inner strategy may drop plays or play others."""
    found = {(one.group, one.sample): one for one in played}
    places = [(play, (play.group, play.sample)) for play in plays]
    return [(play, found[place]) for play, place in places if place in found]


def _asked(one: Trajectory) -> Asked | None:
    """The question that an episode asked; None, if it does not count."""
    if one.stop is StopReason.ERROR or not one.info.get("valid_questions"):
        return None
    task, words = one.task, tuple(str(one.info["asked"]).split())
    return Asked(env=task.env, seed=task.seed, params=dict(task.params), words=words, answer=str(one.info["answer"]))
