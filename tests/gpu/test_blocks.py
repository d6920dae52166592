"""The engine's blocks on a real GPU: (1) numbers are those of an uncached pass, with sharing and with little memory;
(2) `publish` gives the memory back; (3) decoding steps are replayed as graphs, with the numbers of an uncached pass,
also after an update, for a Llama that is computed directly and one whose modules are called."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
import torch

from palaestra.engines import InProcessEngine, forward
from tests.engines.conversations import Talker, block_bytes, small_model, some_ids, uncached

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine, or its build of torch, has no CUDA device"),
]


@pytest.mark.parametrize("blocks", [16, 4096])
def test_1_2_blocks_on_the_device(blocks: int) -> None:
    prompt = some_ids(np.random.default_rng(0), 150, 150)
    logprobs = []
    for device in ("cpu", "cuda"):
        model = small_model(context=1024)
        engine = InProcessEngine(models={"p": model}, device=device, memory=blocks * block_bytes(model))
        talkers = [Talker(engine, number) for number in range(8)]

        async def play(talkers: list[Talker] = talkers) -> None:
            await asyncio.gather(*(t.say(prompt[: 150 - n], seed=n, max_tokens=1) for n, t in enumerate(talkers)))

        asyncio.run(play())
        assert engine.statistics.shared_tokens > 0
        logprobs.append({t.session: t.turns[0].answer.action for t in talkers})
        engine.publish("p", (), 1)
        assert engine.statistics.held_bytes == 0
    here, there = logprobs
    same = [number for number in here if here[number].tokens.tolist() == there[number].tokens.tolist()]
    assert len(same) >= 7  # rounding may move a draw
    for number in same:
        np.testing.assert_allclose(here[number].logprobs, there[number].logprobs, atol=1e-3)


@pytest.mark.parametrize("direct", [True, False])
def test_3_graphs(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "is_plain_llama", lambda model: direct)
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model}, device="cuda")
    for version in (1, 2):
        talkers = [Talker(engine, (version, number)) for number in range(20)]

        async def play(talkers: list[Talker] = talkers) -> None:
            prompts = [some_ids(np.random.default_rng(n), 5, 150) for n in range(len(talkers))]
            await asyncio.gather(
                *(
                    t.say(prompt, seed=n, max_tokens=80)
                    for n, (t, prompt) in enumerate(zip(talkers, prompts, strict=True))
                )
            )

        asyncio.run(play())
        plain = copy.deepcopy(model).cpu()
        for talker in talkers:
            logprobs, _ = uncached(plain, talker.turns[0])
            np.testing.assert_allclose(talker.turns[0].answer.action.logprobs, logprobs, atol=1e-3)
        assert engine.statistics.replayed_calls > engine.statistics.forward_calls / 2
        engine.statistics.reset()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.02)
        engine.publish("p", (), version)
