"""Forks of sessions in the engine.

1.  A fork costs nothing, and what both sessions read next is computed once, also where one comes later.
2.  A tree costs the union of its paths: each id of each node once, whatever the order in which paths go on.
3.  What differs is computed for each; numbers are those of an uncached pass everywhere.
4.  A prompt that failed or was cancelled is shared by nobody once its place was overwritten.
5.  Prompts from which sessions began stay shareable after forks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import numpy as np
import pytest

from palaestra.engines import InProcessEngine
from tests.engines.conversations import Talker, assert_true_to, ids, small_model, some_ids


def branch(talker: Talker, session: Hashable) -> Talker:
    """A talker that goes on from here in a session of its own."""
    talker.engine.fork(talker.session, session)
    return Talker(talker.engine, session, ids=list(talker.ids), turns=list(talker.turns))


@pytest.mark.parametrize("late", [False, True])
def test_a_common_answer_is_computed_once(late: bool) -> None:  # rule 1
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    prompt, answer = some_ids(np.random.default_rng(0), 20, 20), some_ids(np.random.default_rng(1), 9, 9)
    root = Talker(engine, "root")

    async def play() -> list[Talker]:
        await root.say(prompt, max_tokens=4)
        engine.statistics.reset()
        copies = [branch(root, f"copied {k}") for k in range(3)]
        assert engine.statistics.computed_tokens == 0
        if late:
            await root.say(answer, seed=1, max_tokens=5)
            await asyncio.gather(*(copied.say(answer, seed=k, max_tokens=1) for k, copied in enumerate(copies)))
        else:
            everybody = enumerate([root, *copies])
            await asyncio.gather(*(one.say(answer, seed=k, max_tokens=1) for k, one in everybody))
        return [root, *copies]

    talkers = asyncio.run(play())
    assert engine.statistics.prefill_tokens == 1 + 9  # the last id of the response was not read before
    assert engine.statistics.shared_tokens == 3 * (1 + 9)
    for talker in talkers:
        assert_true_to(model, talker)


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_costs_the_union_of_its_paths(seed: int) -> None:  # rules 2, 3
    model = small_model(context=512)
    engine = InProcessEngine(models={"p": model})
    random = np.random.default_rng(seed)
    paths, common = [Talker(engine, 0)], [0]  # and how many ids each has in common with the one that it left

    async def play() -> None:
        await paths[0].say(some_ids(random, 10, 10), max_tokens=3)
        for turn in range(5):
            answers = [some_ids(random, 3, 8) for _ in paths]
            for number, talker in enumerate(list(paths)):
                if len(paths) < 9 and random.random() < 0.8:
                    answers.append(answers[number])
                    common.append(len(talker.ids) + len(answers[number]))
                    paths.append(branch(talker, len(paths)))
            order = random.permutation(len(paths)).tolist()
            await asyncio.gather(*(paths[k].say(answers[k], seed=100 * turn + k, max_tokens=3) for k in order))

    asyncio.run(play())
    assert len(paths) > 4
    # The last sampled id of a path is never read by anyone.
    assert engine.statistics.computed_tokens == sum(map(len, (p.ids[1:] for p in paths))) - sum(common)
    assert engine.statistics.recomputed_tokens == 0
    for talker in paths:
        assert_true_to(model, talker)


def test_a_cancelled_prompt_is_not_shared() -> None:  # rule 4
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    root = Talker(engine, "root")

    async def play() -> list[Talker]:
        await root.say(ids(1, 2, 3), max_tokens=2)
        copied, other = branch(root, "copied"), branch(root, "other")
        doomed = asyncio.create_task(root.say(ids(4, 5, 6, 7), max_tokens=60))
        for _ in range(40):
            await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)
        await root.say(ids(8, 9, 10, 11), seed=3, max_tokens=4)
        await asyncio.gather(copied.say(ids(4, 5, 6, 7), seed=4, max_tokens=4), other.say(ids(8), seed=5, max_tokens=4))
        return [root, copied, other]

    for talker in asyncio.run(play()):
        assert_true_to(model, talker)


def test_first_prompts_stay_shareable() -> None:  # rule 5
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    prompt = some_ids(np.random.default_rng(2), 16, 16)
    root, late = Talker(engine, "root"), Talker(engine, "late")

    async def play() -> list[Talker]:
        await root.say(prompt, max_tokens=2)
        copied = branch(root, "copied")
        await asyncio.gather(root.say(ids(1, 2), seed=1), copied.say(ids(1, 2), seed=2))
        before = engine.statistics.prefill_tokens
        await late.say(prompt, seed=3, max_tokens=2)
        assert engine.statistics.prefill_tokens == before
        return [root, copied, late]

    for talker in asyncio.run(play()):
        assert_true_to(model, talker)
