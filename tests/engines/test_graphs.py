"""Recorded decoding steps. Here a recording is computed again instead of replayed, and the rest is the engine's:
(1) numbers are those of an uncached pass, for turns, forks and sessions of several blocks, also with windows, capped
scores, sinks and low-rank additions; (2) after `publish` steps read the new weights; (3) what cannot be recorded is
computed as usual: a second arena, and copies that are too large; (4) a model that cannot be recorded, and one whose
replayed numbers differ, are named, and their numbers are right; (5) a step never waits for its device and never moves a
tensor to another one, which a recording would not repeat; (6) few sizes are recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from palaestra.engines import InProcessEngine, graphs, scheduler
from palaestra.engines.attention import Packed
from palaestra.engines.blocks import BLOCK, BlockStore
from palaestra.engines.forward import TransformersForward, shape_of
from palaestra.engines.graphs import FixedStep, padded
from palaestra.engines.llama import LlamaForward
from palaestra.engines.session import Statistics
from palaestra.models.adapters import Addition, adapt
from tests.engines.conversations import Talker, assert_true_to, block_bytes, small_model
from tests.engines.test_families import made

ADAPTED = "model.layers.0.mlp.up_proj"
Replay = Callable[[], object]


class Again:
    """A recorder that computes a recorded step again. Like a graph, it leaves the result where the first one was."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        logits = torch.full_like(function(), torch.nan)  # nothing is computed while a step is recorded
        return lambda: logits.copy_(function()), logits


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "can_record", lambda device: True)
    monkeypatch.setattr(graphs, "Recorder", Again)


def play(engine: InProcessEngine, sessions: int = 5, name: str = "") -> list[Talker]:
    """Sessions of several lengths decode together for a while, twice; then one is forked, and both go on."""
    random = np.random.default_rng(0)
    talkers = [Talker(engine, f"{name}{number}") for number in range(sessions)]

    async def talk() -> None:
        for turn in range(2):
            prompts = [random.integers(3, 97, 3 + 45 * number).astype(np.int32) for number in range(sessions)]
            said = (t.say(p, seed=turn, max_tokens=12) for t, p in zip(talkers, prompts, strict=True))
            await asyncio.gather(*said)
        engine.fork(f"{name}1", f"{name}forked")
        talkers.append(Talker(engine, f"{name}forked", ids=list(talkers[1].ids)))
        prompt = random.integers(3, 97, 4).astype(np.int32)
        await asyncio.gather(*(t.say(prompt, seed=n, max_tokens=8) for n, t in enumerate(talkers)))

    asyncio.run(talk())
    return talkers


def assert_right(model: Any, engine: InProcessEngine, name: str = "") -> None:
    for talker in play(engine, name=name):
        assert_true_to(model, talker)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt_oss", "adapters", "deepseek_v3"])
def test_1_numbers(kind: str) -> None:
    model = made("llama" if kind == "adapters" else kind)
    if kind == "adapters":
        layer = model.get_submodule(ADAPTED)
        a, b = nn.Linear(layer.in_features, 3, bias=False), nn.Linear(3, layer.out_features, bias=False)
        adapt(model, {ADAPTED: Addition(a, b, 0.7)})
    engine = InProcessEngine(models={"p": model})
    assert_right(model, engine)
    statistics = engine.statistics
    assert statistics.replayed_calls > statistics.forward_calls / 2


def test_2_new_weights() -> None:
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model})
    assert_right(model, engine)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    engine.publish("p", (), 1)
    before = engine.statistics.replayed_calls
    assert_right(model, engine, "later ")
    assert engine.statistics.replayed_calls > before > 0
    engine.publish("p", (), 2)
    assert engine.statistics.held_bytes == 0


@pytest.mark.parametrize("limit", ["arenas", "bytes", "option"])
def test_3_computed_as_usual(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(context=1024)
    if limit == "arenas":
        monkeypatch.setattr(scheduler, "FIRST_SHARE", 0.0)
        plain = BlockStore.__init__
        monkeypatch.setattr(BlockStore, "__init__", lambda self, **given: plain(self, **given | {"first_bytes": 0}))
    if limit == "bytes":
        monkeypatch.setattr(graphs, "COPIED_BYTES", 16 * block_bytes(model) - 1)
    engine = InProcessEngine(models={"p": model}, graphs=limit != "option")
    assert_right(model, engine)
    if limit == "arenas":
        assert len(engine._servers["p"].store.arenas) > 1
    else:
        assert engine.statistics.replayed_calls == 0


class Waits(Again):
    def __call__(self, function: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        raise RuntimeError("called a synchronizing CUDA operation")


class Stale(Again):
    def __call__(self, function: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        logits = torch.zeros_like(function())
        return lambda: None, logits


@pytest.mark.parametrize(("recorder", "why"), [(Waits, "a synchronizing CUDA operation"), (Stale, "ones? differ by")])
def test_4_refused(
    recorder: type[Again], why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "Recorder", recorder)
    model = small_model(context=1024)
    engine = InProcessEngine(models={"p": model})
    with caplog.at_level(logging.WARNING):
        assert_right(model, engine)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "palaestra.engines")
    assert "are not replayed as CUDA graphs" in line and "differ" in line if recorder is Stale else why in line
    assert engine.statistics.replayed_calls == 0


class StaysOnDevice(TorchDispatchMode):
    """Fails at an operation whose tensors are not on the device, or whose result the host has to wait for."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.seen = device, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **kwargs or {})
        self.seen += 1
        tensors = [one for one in (found, *args) if isinstance(one, Tensor)]
        assert all(one.device.type == self.device for one in tensors), f"{function} reads or gives another device"
        return found


@pytest.mark.parametrize("kind", ["llama", "direct", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "granite"])
def test_5_a_step_stays_on_its_device(kind: str) -> None:
    model = made("llama" if kind == "direct" else kind).to("meta")
    shape, device = shape_of(model), torch.device("meta")  # its tensors have no numbers that one could wait for
    store = BlockStore(shape=shape, limit=2**24, device=device, dtype=torch.float32, statistics=Statistics())
    assert store.take() == 0
    step = FixedStep(16, 2, store)
    forward: Callable[[Packed], Tensor] = TransformersForward(model)
    if kind == "direct":
        forward = LlamaForward(model, length=2 * BLOCK)
    with torch.inference_mode():
        step.begin()
        forward(step)  # what is made once
        with StaysOnDevice("meta") as stays:
            step.begin()
            logits = forward(step)
    assert logits.shape == (16, 97) and logits.device.type == "meta" and stays.seen > 50


def test_5_waiting_is_found() -> None:
    with StaysOnDevice("meta"), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        torch.zeros(3, device="meta").to("cpu")
    with StaysOnDevice("meta"), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        torch.zeros(3, device="meta").nonzero()


def test_6_sizes() -> None:
    sizes = [padded(count, least=1) for count in range(1, 2000)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert all(size <= 1.5 * count for count, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 22
    assert {padded(count, least=16) for count in (1, 16)} == {16}
