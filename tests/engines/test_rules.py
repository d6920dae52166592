"""What must hold of the in-process engine:

1. log-probabilities and entropies are those of an uncached forward pass, whatever the interleaving of sessions,
   turns, lengths and options;
2. a request's tokens and log-probabilities do not depend on what else is in the batch;
3. each id of an episode is computed once, over 32 turns;
4. a prompt that a group shares is computed once, also when members come later or after the first has ended;
5. a finished response resolves at once; those who ask later do not wait for a long one;
6. several policies are served at once, each with its own weights;
7. after `weights_changed` living sessions continue with the new weights and versions, even inside a response;
8. a fork continues like its original, without computing anything;
9. sessions that lost their memory are recomputed, and nobody waits forever for it;
10. generations end by stop id, length or full context, and say so;
11. greedy is the argmax of the uncached model;
12. the trainer's model comes back as it was, and the global random state is never read or changed.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from palaestra.data.interaction import FinishReason
from palaestra.engines import InProcessEngine
from tests.engines.conversations import VOCABULARY, Talker, assert_true_to, block_bytes, ids, small_model, some_ids

OPTIONS = [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9}]


async def talk_all(talkers: list[Talker], turns: int = 3, first_seed: int = 0) -> None:
    jobs = [t.talk(turns, seed=first_seed + n, **OPTIONS[n % len(OPTIONS)]) for n, t in enumerate(talkers)]
    await asyncio.gather(*jobs)


@pytest.mark.parametrize("chunk_tokens", [20, 2048])
def test_numbers_are_those_of_an_uncached_pass(chunk_tokens):  # rule 1
    model = small_model()
    engine = InProcessEngine(models={"p": model}, chunk_tokens=chunk_tokens)
    talkers = [Talker(engine, number) for number in range(15)]
    asyncio.run(talk_all(talkers, turns=4))
    for talker in talkers:
        assert_true_to(model, talker)


def test_a_request_alone_and_among_fifty_others():  # rule 2
    model = small_model()

    async def play(others: int) -> Talker:
        engine = InProcessEngine(models={"p": model})
        crowd = [Talker(engine, f"other {number}") for number in range(others)]
        one = Talker(engine, "one")
        await asyncio.gather(talk_all(crowd, 5, first_seed=100), one.talk(6, seed=1))
        return one

    alone, among = asyncio.run(play(0)), asyncio.run(play(50))
    for left, right in zip(alone.turns, among.turns, strict=True):
        assert left.answer.action.tokens.tolist() == right.answer.action.tokens.tolist()
        # Rows are padded so that products give equal bits in every batch; other machines may differ in the last one.
        np.testing.assert_allclose(left.answer.action.logprobs, right.answer.action.logprobs, atol=1e-6, rtol=0)


def test_each_id_is_computed_once_over_32_turns():  # rule 3
    engine = InProcessEngine(models={"p": small_model(context=2048)})
    talkers = [Talker(engine, number) for number in range(3)]
    asyncio.run(talk_all(talkers, turns=32))
    # The last sampled id of an episode is never read by anyone.
    assert engine.statistics.computed_tokens == sum(len(talker.ids) - 1 for talker in talkers)
    assert engine.statistics.sampled_tokens == sum(
        len(t.answer.action.tokens) for talker in talkers for t in talker.turns
    )
    assert engine.statistics.recomputed_tokens == 0
    engine.statistics.reset()
    assert engine.statistics.computed_tokens == 0


def test_a_group_prompt_is_computed_once():  # rule 4
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    prompt = some_ids(np.random.default_rng(0), 40, 40)
    talkers = [Talker(engine, number) for number in range(10)]

    async def play() -> None:
        await asyncio.gather(*(t.say(prompt, seed=n, max_tokens=1) for n, t in enumerate(talkers[:8])))
        await talkers[8].say(prompt, seed=8, max_tokens=1)
        for number in range(9):
            engine.close(number)
        await talkers[9].say(prompt, seed=9, max_tokens=1)
        await talkers[9].say(ids(3, 4), max_tokens=4)

    asyncio.run(play())
    assert engine.statistics.shared_tokens == 9 * 40
    assert engine.statistics.prefill_tokens == 40 + 3
    assert len({int(talker.turns[0].answer.action.tokens[0]) for talker in talkers}) > 1
    for talker in talkers:
        assert_true_to(model, talker)


def test_a_block_that_is_used_again_shares_nothing_false():  # rule 4
    model = small_model()
    engine = InProcessEngine(models={"p": model}, memory=block_bytes(model))
    prompt, other = ids(1, 2, 3, 4), ids(9, 8, 7)
    talkers = [Talker(engine, number) for number in range(3)]

    async def play() -> None:
        for talker, words in zip(talkers, [prompt, other, prompt], strict=True):
            await talker.say(words, max_tokens=3)
            engine.close(talker.session)

    asyncio.run(play())
    assert engine.statistics.shared_tokens == 0
    for talker in talkers:
        assert_true_to(model, talker)


def test_short_responses_do_not_wait_for_a_long_one():  # rule 5
    engine = InProcessEngine(models={"p": small_model()}, max_sessions=2)
    finished: list[str] = []

    async def say(name: str, tokens: int) -> None:
        await Talker(engine, name).say(ids(1, 2, 3), max_tokens=tokens, seed=len(name))
        engine.close(name)
        finished.append(name)

    async def play() -> None:
        long = asyncio.create_task(say("long", 40))
        for name in ("a", "bb", "ccc"):
            await say(name, 4)
        await long

    asyncio.run(play())
    assert finished == ["a", "bb", "ccc", "long"]
    # The short ones rode along: 40 passes of the long one, and not 40 + 3 · 4.
    assert engine.statistics.forward_calls <= 42


def test_several_policies_at_once():  # rule 6
    models = {name: small_model(seed, layers=seed) for seed, name in enumerate(("left", "right"), start=1)}
    engine = InProcessEngine(models=models)
    engine.publish("left", (), 4)
    talkers = [Talker(engine, number // 2, policy=("left", "right")[number % 2]) for number in range(8)]
    asyncio.run(talk_all(talkers))
    for talker in talkers:
        assert_true_to(models[talker.policy], talker)
        assert {turn.answer.version for turn in talker.turns} == {4 if talker.policy == "left" else 0}


def test_sessions_outlive_their_weights():  # rule 7
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    talkers = [Talker(engine, number) for number in range(4)]
    asyncio.run(talk_all(talkers))
    old = [list(talker.turns) for talker in talkers]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    engine.publish("p", (), 7)
    for talker in talkers:
        talker.turns.clear()
    engine.statistics.reset()
    asyncio.run(talk_all(talkers, first_seed=50))
    assert all(turn.answer.version == 0 for turns in old for turn in turns)
    for talker in talkers:
        assert_true_to(model, talker)
        assert {turn.answer.version for turn in talker.turns} == {7}
    recomputed = engine.statistics.recomputed_tokens
    assert recomputed == sum(len(turns[-1].before) + len(turns[-1].answer.action.tokens) - 1 for turns in old)


def test_weights_change_inside_a_response():  # rule 7
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    engine.publish("p", (), 1)
    talker = Talker(engine, 0)

    async def play() -> None:
        waiting = asyncio.create_task(talker.say(ids(5, 6, 7), max_tokens=12))
        while engine.statistics.sampled_tokens < 6:
            await asyncio.sleep(0)
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(0.5)
        engine.publish("p", (), 2)
        await waiting

    asyncio.run(play())
    turn = talker.turns[0]
    assert turn.answer.version == 1  # the weights that began it
    late = turn.answer.action.tokens.tolist()
    action = turn.answer.action
    turn.before, action.tokens, action.logprobs = turn.before + late[:7], action.tokens[7:], action.logprobs[7:]
    assert_true_to(model, talker)


def test_a_fork_continues_like_its_original():  # rule 8
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    original = Talker(engine, "original")
    asyncio.run(original.talk(3, seed=3))
    engine.statistics.reset()
    engine.fork("original", "copied")
    engine.fork("original", "branch")
    copied, branch = (Talker(engine, name, ids=list(original.ids)) for name in ("copied", "branch"))
    assert engine.statistics.computed_tokens == 0

    async def play() -> None:
        await asyncio.gather(original.talk(2, seed=9), copied.talk(2, seed=9), branch.talk(2, seed=10))

    asyncio.run(play())
    assert copied.ids == original.ids != branch.ids
    assert engine.statistics.recomputed_tokens == 0
    for talker in (original, copied, branch):
        assert_true_to(model, talker)


def test_a_fork_into_a_used_block_shares_nothing_false():  # rules 4, 8
    model = small_model()
    engine = InProcessEngine(models={"p": model}, memory=3 * block_bytes(model))
    prompt, late = ids(1, 2, 3, 4), Talker(engine, "late")

    async def play() -> None:
        for session, words in (("ended", prompt), ("kept", ids(9, 8, 7, 6, 5)), ("third", ids(4, 4))):
            await Talker(engine, session).say(words, max_tokens=3)
        engine.close("ended")
        engine.fork("kept", "copied")
        engine.close("third")
        await late.say(prompt, max_tokens=3)

    asyncio.run(play())
    assert_true_to(model, late)


def test_more_sessions_than_may_be_kept():  # rule 9
    model = small_model()
    engine = InProcessEngine(models={"p": model}, max_sessions=3)
    talkers = [Talker(engine, number) for number in range(12)]
    asyncio.run(talk_all(talkers))
    assert engine.statistics.evictions == 9  # each of the 12 but the last three gave way once, when it had ended
    assert engine.statistics.recomputed_tokens == 0
    for talker in talkers:
        assert_true_to(model, talker)
    engine.fork(0, "copied")  # no session gives way: the copied is computed when it acts
    copied = Talker(engine, "copied", ids=list(talkers[0].ids))
    asyncio.run(copied.talk(1, seed=5))
    assert_true_to(model, copied)


def test_why_generations_end():  # rule 10
    model = small_model(context=20)
    engine = InProcessEngine(models={"p": model})

    async def finish(session: str, prompt: np.ndarray, **options: object) -> tuple[FinishReason, int]:
        answer = await Talker(engine, session).say(prompt, **options)
        return answer.action.finish, len(answer.action.tokens)

    async def play() -> None:
        assert await finish("length", ids(1, 2), max_tokens=5) == (FinishReason.LENGTH, 5)
        assert await finish("context", ids(*range(15)), max_tokens=50) == (FinishReason.CONTEXT, 5)
        assert await finish("stop", ids(1, 2), stop=tuple(range(VOCABULARY))) == (FinishReason.STOP, 1)

    asyncio.run(play())
    assert engine.context("p") == 20


def test_the_stop_id_belongs_to_the_response():  # rule 10
    engine = InProcessEngine(models={"p": small_model()})
    free = asyncio.run(Talker(engine, "free").say(ids(1, 2), max_tokens=10)).action.tokens.tolist()
    stop = free[4]
    held = asyncio.run(Talker(engine, "held").say(ids(1, 2), max_tokens=10, stop=(stop,))).action.tokens.tolist()
    assert held == free[: free.index(stop) + 1]


def test_greedy_is_the_argmax():  # rule 11
    model = small_model()
    engine = InProcessEngine(models={"p": model})
    answer = asyncio.run(Talker(engine, 0).say(ids(4, 5, 6), max_tokens=8, temperature=0.0, entropy=True))
    sequence = [4, 5, 6]
    for token in answer.action.tokens.tolist():
        with torch.no_grad():
            assert token == model(input_ids=torch.tensor([sequence])).logits[0, -1].argmax().item()
        sequence.append(token)
    assert not answer.action.logprobs.any() and answer.action.entropy is not None and not answer.action.entropy.any()


def test_model_and_random_state_are_left_alone():  # rule 12
    model = small_model().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = InProcessEngine(models={"p": model})
    random = torch.random.get_rng_state()
    asyncio.run(talk_all([Talker(engine, 0)]))
    assert torch.equal(random, torch.random.get_rng_state())
    assert model.training and model.config._attn_implementation == "sdpa"
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
