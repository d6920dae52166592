"""What must hold of the memory for keys and values:

1. random sessions with forks, cancelled requests, closed sessions and little memory have the numbers of an uncached
   pass;
2. the arenas never take more than the limit, and what sessions share counts once;
3. tokens and log-probabilities are bit for bit the same, whether a beginning was shared or computed, with others or
   alone, and in any order of arrival;
4. the oldest request always finishes; a request that can never fit is refused with the numbers;
   where memory is short, older sessions go on with theirs, and younger ones wait until these end, so that little is
   computed twice; sessions that are idle for long, or that nobody closes, keep nobody waiting;
5. `publish` and `sleep` free the memory, and sessions go on;
6. amounts of memory are bytes, a text or a share;
7. a prompt longer than `chunk_tokens` is read in several passes of at most so many ids, with the same bits;
8. the logits of the last prompts lie in one piece of memory, which is used again and again, so that the heap stays
   whole; they are those of their prompt as long as it is kept, and until the end of the step that drops it;
9. while a session decodes, a step reads at most `chunk_tokens` ids of the prompts of others, with the same bits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data.protocols import Response
from palaestra.engines import InProcessEngine, blocks, scheduler
from palaestra.engines.blocks import BlockStore, Prompt
from palaestra.engines.memory import free_bytes, limit_of
from palaestra.engines.session import Statistics
from palaestra.errors import ContractError, EpisodeFailure
from tests.engines.conversations import Talker, assert_true_to, block_bytes, ids, small_model, some_ids
from tests.messages import told


def stored(engine: InProcessEngine) -> int:
    """Bytes of all tensors that the engine holds for keys and values."""
    arenas = [arena for server in engine._servers.values() for arena in server.store.arenas]
    return sum(cache.nbytes for arena in arenas for cache in (arena.all_keys, arena.all_values))


def consistent(engine: InProcessEngine) -> None:
    """Each block has as many holders as sessions hold it."""
    store = engine._servers["p"].store
    held = [block for states in engine._sessions.values() for state in states.values() for block in state.blocks]
    assert [held.count(block) for block in range(store.capacity)] == store._holders
    assert engine.statistics.held_bytes == len(set(held)) * store.block_bytes


class Wanderer:
    """Plays random sessions that begin alike, fork, are cancelled and are closed."""

    def __init__(self, engine: InProcessEngine, seed: int) -> None:
        self.engine, self.random, self.seed = engine, np.random.default_rng(seed), seed
        self.beginnings = [some_ids(self.random, 60, 200) for _ in range(3)]
        self.done: list[Talker] = []

    async def wander(self, number: int) -> None:
        random = np.random.default_rng([self.seed, number])
        talker = Talker(self.engine, number)
        beginning = self.beginnings[random.integers(3)]
        prompt = np.concatenate([beginning[: random.integers(1, len(beginning) + 1)], some_ids(random, 1, 4)])
        for turn in range(4):
            for _ in range(random.integers(0, 20)):
                await asyncio.sleep(0)
            seed, most = int(random.integers(2**31)), int(random.integers(1, 20))
            if random.random() < 0.25:
                doomed = asyncio.create_task(talker.say(prompt, seed=seed, max_tokens=150))
                for _ in range(random.integers(1, 60)):
                    await asyncio.sleep(0)
                doomed.cancel()
                await asyncio.gather(doomed, return_exceptions=True)
                if doomed.cancelled():
                    continue
            else:
                await talker.say(prompt, seed=seed, max_tokens=most)
            assert stored(self.engine) <= self.engine._limit
            prompt = some_ids(random, 1, 90)
            if len(talker.ids) > 700:
                break
            if random.random() < 0.3:
                fork = (number, turn)
                self.engine.fork(talker.session, fork)
                child = Talker(self.engine, fork, ids=list(talker.ids), turns=[])
                same = prompt if random.random() < 0.5 else some_ids(random, 1, 70)
                await child.say(same, seed=seed + 1, max_tokens=most)
                self.done.append(child)
                if random.random() < 0.5:
                    self.engine.close(fork)
        self.done.append(talker)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [16, 40, None])
def test_1_2_random_sessions(seed: int, size: int | None) -> None:
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model}, memory=2**30 if size is None else size * block_bytes(model))
    wanderer = Wanderer(engine, seed)

    async def play() -> None:
        await asyncio.gather(*(wanderer.wander(number) for number in range(10)))

    asyncio.run(play())
    consistent(engine)
    assert size == 40 or (engine.statistics.evictions > 0) == (size == 16)
    assert engine.statistics.shared_tokens > 0
    for talker in wanderer.done:
        if talker.turns:
            assert_true_to(model, talker)


def test_2_what_a_group_shares_counts_once() -> None:
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model})
    prompt = some_ids(np.random.default_rng(0), 3 * 64 + 5, 3 * 64 + 5)
    talkers = [Talker(engine, number) for number in range(16)]

    async def play() -> None:
        await asyncio.gather(*(t.say(prompt, seed=n, max_tokens=3) for n, t in enumerate(talkers)))

    asyncio.run(play())
    assert engine.statistics.prefill_tokens == len(prompt)
    assert engine.statistics.held_bytes == (3 + 16) * block_bytes(model) == engine.statistics.peak_bytes
    consistent(engine)
    for talker in talkers:
        engine.close(talker.session)
    assert engine.statistics.held_bytes == 0


def test_2_tasks_share_the_blocks_that_they_begin_with() -> None:
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model})
    random = np.random.default_rng(0)
    system = some_ids(random, 130, 130)
    talkers = [Talker(engine, number) for number in range(6)]
    prompts = [np.concatenate([system, ids(number, 5)]) for number in range(6)]

    async def play() -> None:
        await asyncio.gather(*(t.say(p, max_tokens=2) for t, p in zip(talkers[:5], prompts[:5], strict=True)))
        await talkers[5].say(prompts[5], max_tokens=2)

    asyncio.run(play())
    assert engine.statistics.prefill_tokens == 132 + 5 * 4
    assert engine.statistics.shared_tokens == 5 * 128
    assert engine.statistics.held_bytes == (2 + 6) * block_bytes(model)
    for talker in talkers:
        assert_true_to(model, talker)


SIZES: list[dict[str, Any]] = [{}, {"hidden": 192, "heads": 3}]


@pytest.mark.parametrize("options", SIZES, ids=["small blocks", "large blocks"])
def test_3_sharing_changes_no_bit(options: dict[str, Any]) -> None:
    model = small_model(context=1024, **options)
    random = np.random.default_rng(1)
    system = some_ids(random, 140, 140)
    prompts = [np.concatenate([system[:cut], some_ids(random, 1, 80)]) for cut in (140, 140, 128, 100, 64, 129, 65, 64)]
    prompts += [prompts[0], prompts[0], system[:129], system[:128], system[:65], system[:64]]
    answers = [some_ids(random, 1, 70) for _ in prompts]

    def played(
        order: list[int], *, together: bool, share: bool = True
    ) -> dict[int, list[tuple[list[int], list[float]]]]:
        engine = InProcessEngine(models={"p": model}, share=share)
        talkers = {number: Talker(engine, number) for number in order}

        async def one(number: int) -> None:
            await talkers[number].say(prompts[number], seed=number, max_tokens=9)
            await talkers[number].say(answers[number], seed=number + 50, max_tokens=6)

        async def play() -> None:
            if together:
                await asyncio.gather(*(one(number) for number in order))
            else:
                for number in order:
                    await one(number)

        asyncio.run(play())
        assert (engine.statistics.shared_tokens > 0) == (share and len(order) > 1)
        return {
            number: [(t.answer.action.tokens.tolist(), t.answer.action.logprobs.tolist()) for t in talker.turns]
            for number, talker in talkers.items()
        }

    everybody = list(range(len(prompts)))
    alone = {number: played([number], together=False)[number] for number in everybody}
    assert played(everybody, together=True) == alone
    assert played(everybody[::-1], together=True) == alone
    assert played([int(n) for n in random.permutation(everybody)], together=False) == alone
    assert played(everybody, together=True, share=False) == alone


def test_4_the_oldest_finishes_and_what_cannot_fit_is_refused() -> None:
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model}, memory=f"{4 * block_bytes(model) // 1024}KB")
    talkers = [Talker(engine, number) for number in range(6)]
    random = np.random.default_rng(2)

    async def play() -> None:
        await asyncio.gather(*(t.say(some_ids(random, 50, 60), seed=n, max_tokens=150) for n, t in enumerate(talkers)))
        with told(EpisodeFailure, "memory"):
            await Talker(engine, "large").say(some_ids(random, 200, 200), max_tokens=60)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert engine.statistics.evictions > 0 and stored(engine) <= 4 * block_bytes(model)
    for talker in talkers:
        assert_true_to(model, talker)


def test_4_older_sessions_keep_their_memory() -> None:
    model = small_model()
    engine = InProcessEngine(models={"p": model}, memory=8 * block_bytes(model))  # for 4 of 24 sessions
    talkers = [Talker(engine, number) for number in range(24)]

    async def live(talker: Talker) -> None:
        for turn in range(6):
            await talker.say(ids(*range(talker.session, talker.session + 9)), seed=turn, max_tokens=6)
            for _ in range(talker.session % 7):
                await asyncio.sleep(0)
        engine.close(talker.session)

    async def play() -> None:
        await asyncio.gather(*map(live, talkers))

    asyncio.run(play())
    statistics = engine.statistics
    assert statistics.evictions > 0 and statistics.held_bytes == 0
    assert statistics.recomputed_tokens < 0.3 * statistics.computed_tokens
    for talker in talkers:
        assert_true_to(model, talker)


@pytest.mark.parametrize("busy", [True, False])
def test_4_idle_sessions_keep_nobody_waiting(busy: bool) -> None:
    """Four old sessions fill the memory, and nobody closes them. With `busy`, two take turns in being at work."""
    model = small_model()
    engine = InProcessEngine(models={"p": model}, memory=4 * block_bytes(model))
    old, young = [Talker(engine, number) for number in range(4)], Talker(engine, "young")
    ended = False

    async def work(talker: Talker) -> None:
        while not ended:
            await talker.say(ids(1), max_tokens=1)

    async def play() -> None:
        nonlocal ended
        for talker in old:
            await talker.say(ids(1, 2, 3), max_tokens=1)
        working = [asyncio.create_task(work(talker)) for talker in old[:2] if busy]
        await young.say(ids(4, 5), max_tokens=2)
        ended = True
        await asyncio.gather(*working)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert len(young.turns[0].answer.action.tokens) == 2
    for talker in (*old, young):
        assert_true_to(model, talker)


def test_5_publish_and_sleep_free_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT_BYTES", 0)
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    talker = Talker(engine, 0)
    asyncio.run(talker.say(ids(1, 2, 3), max_tokens=70))
    for free in (engine.sleep, lambda: engine.publish("p", (), 2)):
        assert stored(engine) > 0
        free()
        assert stored(engine) == 0 == engine.statistics.held_bytes
        asyncio.run(talker.say(ids(4), max_tokens=5))
    assert_true_to(model, talker)


def test_6_amounts() -> None:
    cpu = torch.device("cpu")
    assert (
        limit_of("2GB", cpu) == 2 * 2**30 and limit_of("1.5 mb", cpu) == 1.5 * 2**20 and limit_of("70000", cpu) == 70000
    )
    assert limit_of(12345, cpu) == 12345
    assert 0 < limit_of(None, cpu) < free_bytes(cpu) and limit_of("0.5", cpu) <= free_bytes(cpu)
    for wrong in ("much", "-1", 0, "3 apples"):
        with pytest.raises(ContractError, match="not an amount of memory"):
            limit_of(wrong, cpu)


@pytest.mark.parametrize("chunk", [64, 100, 200])
@pytest.mark.parametrize("options", SIZES, ids=["small blocks", "large blocks"])
def test_7_long_prompts_are_read_in_several_passes(
    chunk: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(context=1024, **options)
    random = np.random.default_rng(3)
    system, *rest = (some_ids(random, low, low) for low in (130, 300, 321, 190, 449, 20, 64))
    passes: list[int] = []

    class Noted(scheduler.Batch):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            passes.append(self.real)

    monkeypatch.setattr(scheduler, "Batch", Noted)

    def played(chunk: int) -> list[Response]:
        engine = InProcessEngine(models={"p": model}, chunk_tokens=chunk)
        talkers = [Talker(engine, number) for number in range(6)]

        async def one(number: int) -> None:
            await talkers[number].say(np.concatenate([system, rest[number]]), seed=number, max_tokens=5)
            await talkers[number].say(rest[0][:250], seed=number, max_tokens=5)

        async def play() -> None:
            await asyncio.gather(*(one(number) for number in range(6)))

        passes.clear()
        asyncio.run(play())
        counted = engine.statistics
        assert sum(passes) == counted.computed_tokens and counted.recomputed_tokens == 0
        consistent(engine)
        for talker in talkers:
            assert_true_to(model, talker)
        return [turn.answer for talker in talkers for turn in talker.turns]

    usual = played(10_000)
    assert max(passes) > 449
    split = played(chunk)
    assert max(passes) <= max(chunk, 64)
    for one, other in zip(usual, split, strict=True):
        assert one.action.tokens.tolist() == other.action.tokens.tolist()
        assert one.action.logprobs.tolist() == other.action.logprobs.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("together", [1, 20, 60])
def test_8_logits_lie_in_one_piece_of_memory(together: int) -> None:
    model = small_model(context=256)
    engine = InProcessEngine(models={"p": model})
    store = engine._servers["p"].store
    pieces = set()

    async def ask(number: int) -> None:
        talker = Talker(engine, ("asked", number))
        await talker.say(ids(*divmod(number, 40), 7), seed=number, max_tokens=2)
        assert_true_to(model, talker)
        engine.close(talker.session)

    async def play() -> None:
        for first in range(0, 240, together):
            await asyncio.gather(*(ask(number) for number in range(first, first + together)))
            pieces.update(kept.logits.untyped_storage().data_ptr() for kept in store._prompts.values())
        engine.statistics.reset()
        await asyncio.gather(*(ask(number) for number in range(240 - blocks.KEPT_PROMPTS, 240)))

    asyncio.run(play())
    assert len(pieces) == 1
    assert engine.statistics.shared_tokens == 3 * blocks.KEPT_PROMPTS


def test_8_logits_are_those_of_their_prompt() -> None:
    shape, cpu = blocks.Shape(layers=1, heads=1, width=4, value_width=4), torch.device("cpu")
    store = BlockStore(shape=shape, limit=150 * 2048, device=cpu, dtype=torch.float32, statistics=Statistics())
    random = np.random.default_rng(0)
    count = 0

    def remember() -> None:
        nonlocal count
        block = store.take()
        store.remember(b"%d" % count, Prompt((block,), 0, 1, torch.full((5,), float(count))))
        store.give([block])
        count += 1

    for _ in range(60):
        seen = {}
        for _ in range(random.integers(1, 2 * blocks.KEPT_ROWS)):
            remember()  # it may take the block of an older one, which is dropped then
            key = random.choice(list(store._prompts))
            seen[key] = store.find(key).logits
        store.forget_old_prompts()
        for key, logits in [*seen.items(), *((key, kept.logits) for key, kept in store._prompts.items())]:
            assert logits.tolist() == [float(key)] * 5
        assert len(store._prompts) <= blocks.KEPT_PROMPTS
    assert count > 1000


def test_9_prompts_are_read_between_the_tokens_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(context=2048)
    random = np.random.default_rng(4)
    prompts = [some_ids(random, 20, 20), *(some_ids(random, size, size) for size in (700, 700, 90, 40, 40, 40))]
    prompts[2] = np.concatenate([prompts[1][:600], prompts[2][:100]])  # they begin alike
    steps: list[list[int]] = []  # of each step, the new ids of each row

    class Noted(scheduler.Batch):
        def __init__(self, rows: Any, *given: Any) -> None:
            super().__init__(rows, *given)
            steps[-1] += [len(row.ids) for row in rows]

    def step(self: Any, sessions: Any) -> None:
        steps.append([])
        advance(self, sessions)

    advance = scheduler.PolicyServer._step
    monkeypatch.setattr(scheduler, "Batch", Noted)
    monkeypatch.setattr(scheduler.PolicyServer, "_step", step)

    def played(together: bool) -> list[Response]:
        engine = InProcessEngine(models={"p": model}, chunk_tokens=128)
        talkers = [Talker(engine, number) for number in range(len(prompts))]

        async def one(number: int) -> None:
            if together and number:
                while len(steps) < 3:  # the first one decodes
                    await asyncio.sleep(0)
            await talkers[number].say(prompts[number], seed=number, max_tokens=8 if number else 60)

        async def play() -> None:
            waits = [one(number) for number in range(len(prompts))]
            if together:
                await asyncio.gather(*waits)
            else:
                for wait in waits:
                    await wait

        steps.clear()
        asyncio.run(play())
        consistent(engine)
        for talker in talkers:
            assert_true_to(model, talker)
        return [talker.turns[0].answer for talker in talkers]

    alone = played(together=False)
    usual = played(together=True)
    reading = [step for step in steps[3:] if any(new > 1 for new in step)]
    assert all(1 in step for step in reading) and len(reading) >= 8, "the first session gets a token in each step"
    assert max(sum(new for new in step if new > 1) for step in reading) <= 128
    read = sum(new for step in steps[3:] for new in step if new > 1)
    assert read < sum(map(len, prompts[1:])) - 500, "what two prompts have in common is read once"
    for one, other in zip(alone, usual, strict=True):
        assert one.action.tokens.tolist() == other.action.tokens.tolist()
        assert one.action.logprobs.tolist() == other.action.logprobs.tolist()  # type: ignore[union-attr]
