"""The remote engine: (1) every number is that of the in-process engine, bit for bit, for several policies, forks and
adapters, and after weights were published; (2) a process that was killed between requests or under them is started
again, and nothing differs; (3) one that runs is reached by its URL and its secret, by several clients at once;
(4) where none answers, an episode has failed once patience ends; (5) a request that was cancelled or refused leaves its
session as it was, and one that was closed ends; (6) at the end neither process nor folder is left; (7) what cannot be
is refused by one line, also by the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import RunSetup
from palaestra.data.protocols import Engine, Request
from palaestra.engines import InProcessEngine, wire
from palaestra.engines.remote import RemoteEngine
from palaestra.engines.wire import TOKEN
from palaestra.errors import ContractError, EpisodeFailure, RecipeError, UnknownName
from palaestra.policies.adapter import AdapterPolicy
from palaestra.systems.hapo.entropy_signal import EntropyScale, SignalTemperature
from palaestra.testing import TinyModel
from tests.engines.conversations import Talker, ids, lively, small_model

HEATED = SignalTemperature(scale=EntropyScale(pivot=0.5, deviation=1.0, high=1.0, low=1.0), strength=0.3)


@pytest.fixture
def remote() -> Iterator[Callable[..., RemoteEngine]]:
    """Makes remote engines that are ended after the test."""
    made: list[RemoteEngine] = []

    def make(models: dict[str, Any], **options: Any) -> RemoteEngine:
        made.append(RemoteEngine(models, "cpu", **({"start": True} | options)))
        return made[-1]

    yield make
    for engine in made:  # (6)
        child, folder = engine._child, engine._own_folder
        engine.shutdown()
        engine.shutdown()  # a second time does nothing
        assert child is None or child.poll() is not None
        assert folder is None or not Path(folder.path).exists()


def kill(engine: RemoteEngine) -> None:
    os.kill(engine._child.pid, signal.SIGKILL)


def turned(model: Any, factor: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(factor)


def conversation(engine: Engine, models: dict[str, Any], *, strike: Callable[[], None] = lambda: None) -> list[Any]:
    """All that is said in conversations with forks, before and after new weights; `strike` is called three times."""
    talkers = [Talker(engine, number // 2, policy=sorted(models)[number % 2]) for number in range(8)]

    async def talk(turns: int, seed: int, *, striking: bool) -> None:
        jobs = [
            t.talk(turns, seed=seed + n, entropy_temperature=HEATED if n == 3 else None) for n, t in enumerate(talkers)
        ]
        if striking:
            loop = asyncio.get_running_loop()
            loop.call_later(0.02, strike)
        await asyncio.gather(*jobs)

    asyncio.run(talk(3, 0, striking=False))
    strike()
    engine.fork(0, "branch")
    talkers += [Talker(engine, "branch", policy=t.policy, ids=list(t.ids)) for t in talkers[:2]]
    asyncio.run(talk(2, 20, striking=True))
    for version, name in enumerate(sorted(models), start=4):
        turned(models[name], 1.05)
        engine.publish(name, models[name].named_parameters(), version)
    asyncio.run(talk(2, 40, striking=False))
    strike()
    asyncio.run(talk(2, 60, striking=False))
    said = []
    for talker in talkers:
        for turn in talker.turns:
            action = turn.answer.action
            arrays = [action.tokens.tolist(), action.logprobs.tobytes(), action.entropy.tobytes()]
            said.append([talker.session, talker.policy, turn.answer.version, action.finish, *arrays])
    return said


def two_models() -> dict[str, Any]:
    return {name: small_model(seed, layers=seed) for seed, name in enumerate(("left", "right"), start=1)}


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_1_2_every_number(remote: Callable[..., RemoteEngine], dies: bool) -> None:
    here, there = two_models(), two_models()
    engine, processes = remote(there), set()

    def strike() -> None:
        processes.add(engine._child.pid)
        if dies:
            kill(engine)

    found = conversation(engine, there, strike=strike)
    assert found == conversation(InProcessEngine(here), here)
    assert {said[2] for said in found} == {0, 4, 5}
    assert len(processes) == (3 if dies else 1)


@pytest.mark.slow
def test_1_adapters(remote: Callable[..., RemoteEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    base = TinyModel(name="base")
    lively(base.model)
    base.trainable = False
    policies = [base, *(AdapterPolicy(n, RunSetup(policies={"base": base}), of="base") for n in ("one", "two"))]
    draw, written, plain = torch.Generator().manual_seed(1), {}, wire.write_tensors

    def noted(folder: Path, policy: str, version: int, tensors: Any) -> Path:
        kept = dict(tensors)
        written[policy.partition(".")[0], version] = {name.rpartition(".")[2] for name in kept}
        return plain(folder, policy, version, kept.items())

    monkeypatch.setattr(wire, "write_tensors", noted)
    engine = remote({policy.name: policy.model for policy in policies})

    def said(by: Engine) -> list[Any]:
        talkers = [Talker(by, number, policy=policies[number % 3].name) for number in range(6)]

        async def talk() -> None:
            await asyncio.gather(*(talker.talk(2, seed=n) for n, talker in enumerate(talkers)))

        asyncio.run(talk())
        for talker in talkers:
            by.close(talker.session)
        return [[turn.answer.action.logprobs.tobytes() for turn in talker.turns] for talker in talkers]

    before = said(engine)
    for policy in policies[1:]:
        with torch.no_grad():
            for weight in policy.module.parameters():
                weight.normal_(std=0.3, generator=draw)
        policy.engine = engine
        policy.weights_changed(1)
    after = said(engine)
    assert after == said(InProcessEngine({policy.name: policy.model for policy in policies})) != before
    own = {"lora_A", "lora_B"}
    assert written == {
        ("base", 0): {"weight"},
        **{(name, version): own for name in ("one", "two") for version in (0, 1)},
    }


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process that somebody else has started, and its URL."""
    command = [sys.executable, "-m", "palaestra.engines.serve", f"--folder={tmp_path}", "--port=0", "--threads=1"]
    environment = os.environ | {TOKEN: "secret"}
    with subprocess.Popen([*command, "max_sessions=8"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}", process
        process.kill()


def test_3_4_of_somebody_else(
    remote: Callable[..., RemoteEngine], listening: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, process = listening
    monkeypatch.setenv(TOKEN, "secret")
    models = [small_model(seed) for seed in (1, 2)]
    clients = [remote({"p": model}, start=False, url=url, patience=0.5) for model in models]
    for client, model in zip(clients, models, strict=True):
        talker, other = Talker(client, 0), Talker(InProcessEngine({"p": model}), 0)
        asyncio.run(talker.talk(3, seed=1))
        asyncio.run(other.talk(3, seed=1))
        assert talker.ids == other.ids
    assert not list(tmp_path.glob("*.safetensors")), "what was read is removed"
    monkeypatch.setenv(TOKEN, "wrong")
    stranger = remote({"p": models[0]}, start=False, url=url)
    with pytest.raises(EpisodeFailure, match="another secret"):
        asyncio.run(Talker(stranger, 0).say(ids(1)))
    clients[1].shutdown()
    process.kill()
    with pytest.raises(EpisodeFailure, match=r"has not answered for 0\.5 s") as caught:
        asyncio.run(Talker(clients[0], 0).say(ids(1)))
    assert caught.value.boundary == "engine"


def test_5_cancelled_refused_closed(remote: Callable[..., RemoteEngine]) -> None:
    model = small_model(context=900)
    engine = remote({"p": model}, max_length=800)
    talker, other = Talker(engine, 0), Talker(InProcessEngine({"p": model}), 0)
    assert engine.context("p") == 800

    async def play() -> None:
        await talker.talk(2, seed=1)
        for _ in range(3):
            waiting = asyncio.create_task(engine.generate(Request(policy="p", session=0, prompt=ids(4), seed=9)))
            await asyncio.sleep(0.01)
            with pytest.raises(ContractError, match="generating"):
                await talker.say(ids(1))
            with pytest.raises(ContractError, match="generating"):
                engine.fork(0, 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(EpisodeFailure, match="and the vocabulary has 97"):
            await talker.say(ids(500))
        with pytest.raises(EpisodeFailure, match="holds 800"):
            await talker.say(np.full(800, 3, np.int32))
        await talker.talk(2, seed=2)
        doomed = asyncio.create_task(Talker(engine, "closed").say(ids(1), max_tokens=700))
        await asyncio.sleep(0.05)
        engine.close("closed")
        with pytest.raises(EpisodeFailure, match="closed while it was generating"):
            await doomed

    async def plain() -> None:
        await other.talk(2, seed=1)
        await other.talk(2, seed=2)

    asyncio.run(play())
    asyncio.run(plain())
    assert talker.ids == other.ids
    assert engine._child.poll() is None and engine._folder.is_dir()  # until the end, see `remote`


@pytest.mark.slow
def test_5_policies_come_and_go(remote: Callable[..., RemoteEngine]) -> None:
    model = small_model()
    engine = remote({"p": model})
    asyncio.run(Talker(engine, 0).say(ids(1)))
    with pytest.raises(ContractError, match="`p` is served"):
        engine.serve("p", model)
    engine.serve("q", small_model(2), version=6)
    assert asyncio.run(Talker(engine, 1, policy="q").say(ids(1))).version == 6
    engine.close(1)
    engine.dismiss("q")
    engine.dismiss("nobody")
    with pytest.raises(UnknownName, match="no policy `q`"):
        asyncio.run(Talker(engine, 1, policy="q").say(ids(1)))
    with pytest.raises(ContractError, match="no session 7"):
        engine.fork(7, 8)


@pytest.mark.slow
def test_7_refused(remote: Callable[..., RemoteEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"start": False}, {"url": "http://127.0.0.1:1"}):
        with pytest.raises(RecipeError, match="either `start` or `url`"):
            remote({}, **options)
    for url in ("https://127.0.0.1:1", "127.0.0.1:8760", "http://127.0.0.1"):
        with pytest.raises(RecipeError, match="is not like http"):
            remote({}, start=False, url=url)
    engine = remote({"p": small_model()}, patience=0.1)
    engine._options.append("max_session=3")
    with pytest.raises(EpisodeFailure, match=r"has not answered for 0\.1 s: it ended during its start"):
        asyncio.run(Talker(engine, 0).say(ids(1)))


@pytest.mark.slow
def test_7_other_machines_need_a_secret(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "palaestra.engines.serve", f"--folder={tmp_path}", "--host=0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if name != TOKEN}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1 and f"export {TOKEN}=" in done.stderr
