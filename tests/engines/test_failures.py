"""What must hold when something goes wrong:

1. a prompt longer than the context is refused with both lengths, ids outside the vocabulary with both numbers;
2. logits that are not finite fail the requests concerned, naming policy and version, and the engine goes on
   when the weights are sound again;
3. a forward pass that fails for one session fails that request alone; the session is as it was;
4. a cancelled request frees its slot at once and leaves its session as it was;
5. nobody waits forever: not when the engine itself breaks, not when a session is closed while it generates;
6. an event loop that died leaves nothing behind;
7. unknown policies, requests on a busy session and impossible forks are refused by name;
8. programs that wait in worker threads do not disturb the others;
9. a number that cannot be sampled is refused before it reaches a batch;
10. a draw or a step that fails for one session fails that request alone, and the others get what they get alone.
"""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from palaestra.engines import InProcessEngine, scheduler
from palaestra.errors import ContractError, EpisodeFailure, UnknownName
from tests.engines.conversations import Talker, assert_true_to, ids, small_model


def failing_on(engine: InProcessEngine, token: int) -> None:
    """Let every forward pass that reads this id raise."""
    served = engine._servers["p"]
    usual = served._forward

    def forward(batch):
        logits = usual(batch)  # fails late, when keys and values are written
        if token in batch.ids[: batch.real].tolist():
            raise RuntimeError("out of memory")
        return logits

    served._forward = forward


def test_prompts_that_cannot_be_read():  # rule 1
    engine = InProcessEngine(models={"p": small_model(context=32)})
    talker = Talker(engine, 0)

    async def play() -> None:
        with pytest.raises(EpisodeFailure, match=r"40 ids \(40 new\).*holds 32") as caught:
            await talker.say(ids(*range(40)))
        assert caught.value.boundary == "engine"
        with pytest.raises(EpisodeFailure, match="between 3 and 500, and the vocabulary has 97"):
            await talker.say(ids(3, 500))
        with pytest.raises(EpisodeFailure, match="needs a prompt"):
            await talker.say(ids())
        with pytest.raises(EpisodeFailure, match="top_p=0"):
            await talker.say(ids(1), top_p=0.0)
        await talker.say(ids(*range(20)), max_tokens=2)
        with pytest.raises(EpisodeFailure, match=r"42 ids \(20 new\)"):
            await talker.say(ids(*range(20)))
        await talker.say(ids(5), max_tokens=2)

    asyncio.run(play())
    assert_true_to(engine._servers["p"]._forward.model, talker)


def test_logits_that_are_not_finite():  # rule 2
    models = {"p": small_model(), "sound": small_model(1)}
    engine = InProcessEngine(models=models)
    engine.publish("p", (), 3)
    talkers = [Talker(engine, 0), Talker(engine, 1), Talker(engine, 2, policy="sound")]

    async def play(count: int = 3) -> list[object]:
        prompt = ids(*range(count))
        return await asyncio.gather(*(t.say(prompt, seed=1, max_tokens=4) for t in talkers), return_exceptions=True)

    asyncio.run(play())
    weight = models["p"].model.layers[0].self_attn.v_proj.weight
    good = weight.clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
    engine.publish("p", (), 4)
    # A long prompt leaves not-a-number values in the slot, beyond where the next, short one ends.
    first, second, third = asyncio.run(play(40))
    for failure in (first, second):
        assert isinstance(failure, EpisodeFailure) and "not finite" in str(failure)
        assert "policy `p`, version 4" in str(failure)
    assert not isinstance(third, BaseException)
    with torch.no_grad():
        weight.copy_(good)
    engine.publish("p", (), 5)
    assert not any(isinstance(answer, BaseException) for answer in asyncio.run(play()))
    for talker in talkers:
        assert_true_to(models[talker.policy], talker)


def test_a_failing_pass_fails_one_request_alone():  # rule 3
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    failing_on(engine, 66)
    talkers = [Talker(engine, number) for number in range(5)]

    async def play() -> list[object]:
        prompts = [ids(1, 2, 66 if number == 3 else number) for number in range(5)]
        return await asyncio.gather(
            *(t.say(p, max_tokens=1, top_k=1) for t, p in zip(talkers, prompts, strict=True)), return_exceptions=True
        )

    answers = asyncio.run(play())
    assert [isinstance(answer, EpisodeFailure) for answer in answers] == [False, False, False, True, False]
    assert "out of memory" in str(answers[3])
    asyncio.run(talkers[3].say(ids(4, 5), max_tokens=3, top_k=1))  # the failed prompt is not part of the session
    for talker in talkers:
        assert_true_to(model, talker)


def test_a_half_overwritten_slot_is_not_shared():  # rule 3
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    failing_on(engine, 66)
    prompt, late = ids(1, 2, 3, 4), Talker(engine, "late")

    async def play() -> None:
        first = Talker(engine, "first")
        cancelled = asyncio.create_task(first.say(prompt, max_tokens=900))
        while not engine.statistics.sampled_tokens:
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        with pytest.raises(EpisodeFailure):
            await first.say(ids(9, 8, 7, 66))
        await late.say(prompt, max_tokens=4)

    asyncio.run(play())
    assert_true_to(model, late)


def test_a_cancelled_request_frees_its_slot():  # rule 4
    model = small_model()
    engine = InProcessEngine(models={"p": model}, max_sessions=1)
    slow, other = Talker(engine, "slow"), Talker(engine, "other")

    async def play() -> None:
        await slow.say(ids(1, 2), max_tokens=2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(slow.say(ids(3, 4), max_tokens=900), timeout=0.05)
        await asyncio.wait_for(other.say(ids(7, 8), max_tokens=3), timeout=20)
        await slow.say(ids(5), max_tokens=3)

    asyncio.run(play())
    assert_true_to(model, slow)
    assert_true_to(model, other)


def test_cancelled_before_the_first_pass():  # rule 4
    engine = InProcessEngine(models={"p": small_model()})

    async def play() -> None:
        doomed = asyncio.create_task(Talker(engine, 0).say(ids(1, 2)))
        await asyncio.sleep(0)
        doomed.cancel()
        await Talker(engine, 1).say(ids(3), max_tokens=2)
        assert doomed.cancelled()

    asyncio.run(play())
    assert engine.statistics.prefill_tokens == 1


def test_a_broken_engine_lets_nobody_wait(monkeypatch):  # rule 5
    engine = InProcessEngine(models={"p": small_model()})
    with monkeypatch.context() as patch:
        patch.setattr("palaestra.engines.scheduler.sample", lambda *_, **__: 1 / 0)

        async def play() -> list[object]:
            waiting = (Talker(engine, number).say(ids(1, number)) for number in range(3))
            return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), timeout=20)

        for failure in asyncio.run(play()):
            assert isinstance(failure, EpisodeFailure) and "ZeroDivisionError" in str(failure)
    asyncio.run(Talker(engine, 0).say(ids(1)))


def test_closed_while_generating():  # rule 5
    engine = InProcessEngine(models={"p": small_model()})

    async def play() -> None:
        waiting = asyncio.create_task(Talker(engine, 0).say(ids(1, 2), max_tokens=900))
        await asyncio.sleep(0)
        engine.close(0)
        with pytest.raises(EpisodeFailure, match="closed while"):
            await waiting

    asyncio.run(play())
    engine.close("never seen")


def test_a_dead_event_loop_leaves_nothing_behind():  # rule 6
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    loop = asyncio.new_event_loop()
    left = loop.create_task(Talker(engine, 0).say(ids(1, 2), max_tokens=900))
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    talker = Talker(engine, 0)
    asyncio.run(talker.say(ids(3), max_tokens=3))
    assert_true_to(model, talker)
    left.cancel()
    loop.run_until_complete(asyncio.gather(left, return_exceptions=True))
    loop.run_until_complete(asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_refusals_by_name():  # rule 7
    engine = InProcessEngine(models={"policy": small_model()})

    async def play() -> None:
        with pytest.raises(UnknownName, match="Candidates: policy"):
            await Talker(engine, 0, policy="polcy").say(ids(1))
        busy = asyncio.create_task(Talker(engine, 0, policy="policy").say(ids(1), max_tokens=3))
        await asyncio.sleep(0)
        with pytest.raises(ContractError, match="generating already"):
            await Talker(engine, 0, policy="policy").say(ids(1))
        with pytest.raises(ContractError, match="is generating"):
            engine.fork(0, 1)
        await busy
        with pytest.raises(ContractError, match="there is no session 9"):
            engine.fork(9, 1)
        with pytest.raises(ContractError, match="exists"):
            engine.fork(0, 0)

    asyncio.run(play())


def test_environments_in_worker_threads():  # rule 8
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    talkers = [Talker(engine, number) for number in range(6)]

    async def play(talker: Talker) -> None:
        for turn in range(3):
            await talker.say(ids(turn, talker.session), seed=turn, max_tokens=3)
            await asyncio.to_thread(time.sleep, 0.001 * (talker.session % 3))

    async def play_all() -> None:
        await asyncio.gather(*(play(talker) for talker in talkers))

    asyncio.run(play_all())
    for talker in talkers:
        assert_true_to(model, talker)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", -1.0), ("temperature", "1"),
        ("temperature", True), ("top_p", float("nan")), ("top_p", 1.5), ("top_k", -1), ("top_k", 2.5), ("top_k", True),
        ("seed", 1.5), ("seed", "x"), ("max_tokens", 0), ("max_tokens", 2.5),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_sampled(name, value):  # rule 9
    engine = InProcessEngine(models={"p": small_model()})
    with pytest.raises(EpisodeFailure, match=f"{name}="):
        asyncio.run(Talker(engine, 0).say(ids(1), **{name: value}))
    asyncio.run(Talker(engine, 0).say(ids(1), top_k=2**70, seed=2**70))  # a large one is as good as the largest


def test_a_failing_draw_fails_one_request_alone(monkeypatch):  # rule 10
    model = small_model()
    usual = scheduler.sample

    def failing(logits, uniforms, **options):
        if 13 in options["top_k"]:
            raise RuntimeError("a bad row")
        return usual(logits, uniforms, **options)

    def play(*, together: bool) -> list[object]:
        engine = InProcessEngine(models={"p": model})
        talkers = [Talker(engine, number) for number in range(6)]

        async def say() -> list[object]:
            asked = [t.say(ids(1, n), seed=n, max_tokens=9, top_k=13 if n == 2 else 0) for n, t in enumerate(talkers)]
            if together:
                return await asyncio.gather(*asked, return_exceptions=True)
            return [(await asyncio.gather(one, return_exceptions=True))[0] for one in asked]

        return asyncio.run(say())

    monkeypatch.setattr(scheduler, "sample", failing)
    together, alone = play(together=True), play(together=False)
    assert [isinstance(answer, EpisodeFailure) for answer in together] == [n == 2 for n in range(6)]
    assert "the draw of a token failed: RuntimeError: a bad row" in str(together[2])
    for one, other in zip(together, alone, strict=True):
        if not isinstance(one, EpisodeFailure):
            assert one.action.tokens.tolist() == other.action.tokens.tolist()
            assert one.action.logprobs.tolist() == other.action.logprobs.tolist()


def test_a_failing_step_fails_one_request_alone(monkeypatch):  # rule 10
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    talkers = [Talker(engine, number) for number in range(4)]
    usual = scheduler.PolicyServer._note

    def failing(self, session, logits):
        if 66 in session.ids and session.tokens:
            raise RuntimeError("a bad session")
        usual(self, session, logits)

    monkeypatch.setattr(scheduler.PolicyServer, "_note", failing)

    async def play() -> list[object]:
        asked = [t.say(ids(1, 66 if n == 2 else n), seed=n, max_tokens=9) for n, t in enumerate(talkers)]
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(play())
    assert [isinstance(answer, EpisodeFailure) for answer in answers] == [False, False, True, False]
    assert "a bad session" in str(answers[2])
    asyncio.run(talkers[2].say(ids(4, 5), max_tokens=3))  # the failed prompt is not part of the session
    for talker in talkers:
        assert_true_to(model, talker)
