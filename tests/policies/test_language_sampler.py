"""Sessions of language policies: (1) a long observation is tokenized in a thread, with the ids that it has elsewhere,
and a short one at once; (2) while it is tokenized, the timers of other episodes go on; (3) an act that is canceled
waits until the thread has ended; (4) a tokenizer that panics fails its episode.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from palaestra.chat import FullHistory
from palaestra.chat.lengths import SHORT, Encoder, letters_of
from palaestra.data import Observation
from palaestra.data.protocols import Sampling
from palaestra.engines import InProcessEngine
from palaestra.errors import EpisodeFailure
from palaestra.models.tokenizer import train_tokenizer
from palaestra.policies.language_sampler import LanguageSession
from palaestra.testing import TinyModel
from tests.messages import told

LONG = "a door. " * (SHORT // 8 + 1)


@pytest.fixture
def policy() -> Any:
    made = TinyModel(name="main", context=2**15)
    made.engine = InProcessEngine(models={"main": made.model})
    return made


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each observation, whether the event loop's thread has tokenized it."""
    noted: list[bool] = []
    observe, here = LanguageSession._observe, threading.get_ident()

    def noting(session: LanguageSession, observation: Observation) -> Any:
        noted.append(threading.get_ident() == here)
        return observe(session, observation)

    monkeypatch.setattr(LanguageSession, "_observe", noting)
    return noted


def session_of(policy: Any) -> Any:
    return policy.session(context=FullHistory(), sampling=Sampling(max_tokens=2), key="k")


def test_1_the_ids(policy: Any, threads: list[bool]) -> None:
    messages = [{"role": "user", "content": LONG}, {"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert letters_of(Observation(messages=messages)) == 2 * len(LONG) and letters_of(Observation(text="ab")) == 2

    async def play() -> None:
        session = session_of(policy)
        for text in ("short", LONG, "short"):
            response = await session.act(Observation(text=text), seed=1)
            ids = policy.renderer.observation(Observation(text=text), first=text == "short" and len(threads) == 1)
            assert np.array_equal(response.prompt, ids)

    asyncio.run(play())
    assert threads == [True, False, True]


def test_2_others_go_on(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, encode = threading.Event(), Encoder.encode

    def slow(encoder: Encoder, text: str, **options: Any) -> Any:
        if len(text) > SHORT:
            assert go_on.wait(30)
        return encode(encoder, text, **options)

    monkeypatch.setattr(Encoder, "encode", slow)

    async def play() -> None:
        act = asyncio.create_task(session_of(policy).act(Observation(text=LONG), seed=1))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not act.done()
        go_on.set()
        assert (await act).action.tokens.size

    asyncio.run(play())


def test_3_a_canceled_act(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    begun = threading.Event()

    def slow(session: LanguageSession, observation: Observation) -> Any:
        begun.set()
        time.sleep(0.2)
        order.append("thread")

    monkeypatch.setattr(LanguageSession, "_observe", slow)

    async def play() -> None:
        act = asyncio.create_task(session_of(policy).act(Observation(text=LONG), seed=1))
        await asyncio.to_thread(begun.wait, 30)
        act.cancel()
        with pytest.raises(asyncio.CancelledError):
            await act
        order.append("canceled")

    asyncio.run(play())
    assert order == ["thread", "canceled"]


@pytest.mark.parametrize("many", [1, 400])
def test_4_panics(policy: Any, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    tokenizer = train_tokenizer(["a b"], vocabulary=260).backend_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    monkeypatch.setattr(policy.renderer.encoder, "_tokenizer", tokenizer)
    with told(EpisodeFailure, "retry-limit"):
        asyncio.run(session_of(policy).act(Observation(text="a" * 64 * many + "b"), seed=1))
