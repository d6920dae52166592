"""The question pool, beyond test_proposer.py:

1. A question enters the pool once, however often it is asked in one iteration.
2. An inner strategy may drop episodes, return them in another order and play more of them: a replacement belongs to the
   play whose question did not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from palaestra.data import Play, Task, Trajectory
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.search_self_play.question_pool import QuestionPool

Inner = Callable[[list[Trajectory]], list[Trajectory]]


def plays(*groups: str) -> list[Play]:
    return [
        Play(task=Task(env="quiz", seed=0), group=group, sample=sample, seed=10 * i + sample)
        for i, group in enumerate(groups)
        for sample in range(2)
    ]


def run(strategy: QuestionPool, asked: Sequence[Play], question: str, inner: Inner = lambda found: found) -> list[Play]:
    """The plays that replace questions, where every episode asks this one; an empty question does not count."""
    rounds: list[list[Play]] = []

    async def collect(wanted: Sequence[Play], rollout: Any) -> list[Trajectory]:
        rounds.append(list(wanted))
        info = {"valid_questions": int(bool(question)), "asked": question, "answer": "elm"}
        return inner([Trajectory(task=one.task, group=one.group, sample=one.sample, info=info) for one in wanted])

    rollout: Any = RolloutContext(more=lambda groups: [], settings=None, sampling=None, step=1, seed=7)  # type: ignore[arg-type]
    rollout.inner = collect
    asyncio.run(strategy(asked, rollout))
    return rounds[1] if len(rounds) > 1 else []


def test_1_a_question_enters_once() -> None:
    strategy = QuestionPool()
    run(strategy, plays("a", "b"), "which tree")
    assert [one.words for one in strategy.pool] == [("which", "tree")]


def test_2_plays_and_episodes_are_paired() -> None:
    strategy = QuestionPool(attempts=1)
    run(strategy, plays("a"), "which tree")

    def changed(found: list[Trajectory]) -> list[Trajectory]:
        if found[0].group.endswith("again"):
            return found
        return [Trajectory(task=found[0].task, group="more", info=found[0].info), *found[:0:-1]]

    again = run(strategy, plays("b", "c"), "", changed)
    assert sorted(one.group for one in again) == ["b-1-again", "c-0-again", "c-1-again"]
