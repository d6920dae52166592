"""Several processes and an engine beside them: (1) two ranks with one server give the metrics of one rank, no request
fails, and one rank alone sends weights: whole ones, adapters, spread ones, and with freed memory of the server;
(2) a server that is started again gets the weights under their name from whichever rank misses them, also from both at
once; (3) each rank has a remote process, or all use one; (4) a server that refuses weights ends all ranks, and each
says why; (5) an address that names another server on each machine is refused.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.data.ranks import Ranks
from palaestra.engines.external.engine import ServedEngine
from palaestra.engines.external.sglang import SGLangEngine
from palaestra.engines.external.vllm import VLLMEngine
from palaestra.errors import PalaestraError
from palaestra.models.adapters import add_adapter, named_tensors
from palaestra.models.causal_lm import load_causal_lm
from palaestra.recipe import load
from palaestra.testing.stand_in import StandIn
from palaestra.training.setup import build_setup
from tests.engines.conversations import Talker, ids, small_model
from tests.extras import needs
from tests.training.devices import RUNS, TRAINING, log, played
from tests.training.test_parallel import ADDITIONS, SPREAD, play_by_two

pytestmark = needs("httpx2", "peft")
KINDS: dict[str, type[ServedEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}
LOADS = ("/collective_rpc", "/update_weights_from_disk", "/v1/load_lora_adapter", "/load_lora_adapter")
SHORT = ("training.iterations=2", "warm_start.epochs=2", "evaluation.tasks=4")
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the small run."""
    place = tmp_path_factory.mktemp("ranks") / "model"
    build_setup(load([TRAINING, *RUNS["language"]]).settings).policies["main"].model.save_pretrained(place)
    return place


def alike(one: Path, other: Path) -> None:
    assert len(log(one)) == len(log(other)) > 0
    for mine, theirs in zip(log(one), log(other), strict=True):
        compared = [key for key in mine if key.endswith(("reward/mean", "/loss", "/grad_norm"))]
        assert len(compared) >= 3
        assert [theirs[key] for key in compared] == pytest.approx([mine[key] for key in compared], rel=1e-2, abs=1e-3)


def test_1_whole_weights(folder: Path, tmp_path: Path) -> None:
    same_as_alone("vllm", (), {}, folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        ("sglang", (), {}),
        ("vllm", ADDITIONS, {}),
        ("sglang", ADDITIONS, {}),
        ("vllm", SPREAD, {}),
        ("vllm", (*ADDITIONS, *SPREAD), {}),
        ("vllm", (), {"free_memory": True}),
        ("sglang", (), {"free_memory": True}),
    ],
    ids=["whole", "adapter", "adapter2", "spread", "spread adapter", "memory", "memory2"],
)
def test_1_with_other_settings(
    kind: str, given: tuple[str, ...], options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    same_as_alone(kind, given, options, folder, tmp_path)


@pytest.mark.slow
def test_1_several_policies(tmp_path: Path) -> None:
    base = tmp_path / "base"
    build_setup(load([TRAINING, *RUNS["adapters"]]).settings).policies["base"].model.save_pretrained(base)
    same_as_alone("vllm", (), {}, base, tmp_path, run="adapters")


def same_as_alone(
    kind: str, given: tuple[str, ...], options: dict[str, Any], folder: Path, place: Path, *, run: str = "language"
) -> None:
    loads = {}
    for name, play in (("one", played), ("two", play_by_two)):
        with StandIn(kind, folder) as server:
            engine = "engine=" + json.dumps({kind: {"url": server.url, **options}})
            play(run, place / name, engine, *given, *SHORT)
            loads[name] = len([path for path, _ in server.requests if path in LOADS])
    alike(place / "one", place / "two")
    timings = [json.loads(line) for line in (place / "two" / "timings.jsonl").read_text().splitlines()]
    assert sum(line.get("engine/faults", 0) + line.get("engine/lost_requests", 0) for line in timings) == 0
    assert any("engine/requests" in line for line in timings)
    assert loads["two"] == loads["one"], "one rank alone sends weights"


# ---- (2) and (4): two engines as if in two processes --------------------------------------------------------
class Together(Ranks):
    """Two ranks as threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, texts: list[str]) -> None:
        self.rank, self.world, self._barrier, self._texts = rank, 2, barrier, texts

    def texts(self, own: str) -> list[str]:
        self._texts[self.rank] = own
        self._barrier.wait(60)
        given = list(self._texts)
        self._barrier.wait(60)
        return given


class Pair:
    """An engine for each of two ranks. `adapters`: the policy has additions alone."""

    def __init__(self, kind: str, folder: Path, server: StandIn, *, adapters: bool = False) -> None:
        barrier, texts = threading.Barrier(2), ["", ""]
        self.models = [load_causal_lm(folder).eval().requires_grad_(False) for _ in range(2)]
        if adapters:
            add = functools.partial(add_adapter, rank=4, alpha=8.0, targets=None, seed=0)
            self.models = [add(one).get_base_model() for one in self.models]
        self.engines = [KINDS[kind]({"p": one}, "cpu", url=server.url, patience=20.0) for one in self.models]
        self.ranks = [Together(rank, barrier, texts) for rank in range(2)]

    def each(self, act: Callable[[int], None]) -> list[str]:
        """Let both ranks act at once. Returns what each raises, or ""."""
        faults = ["", ""]

        def run(rank: int) -> None:
            try:
                act(rank)
            except PalaestraError as error:
                faults[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults

    def share(self) -> list[str]:
        return self.each(lambda rank: self.engines[rank].share(self.ranks[rank]))

    def publish(self, version: int) -> list[str]:
        for model in self.models:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(0.9)
        return self.each(lambda rank: self.engines[rank].publish("p", named_tensors(self.models[rank]), version))

    def close(self) -> None:
        for engine in self.engines:
            engine.shutdown()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    place = tmp_path_factory.mktemp("small") / "model"
    small_model(context=256).save_pretrained(place)
    return place


def loads_of(server: StandIn) -> int:
    return len([path for path, _ in server.requests if path in LOADS])


@both
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapter"])
def test_2_started_again(kind: str, adapters: bool, small: Path) -> None:
    with StandIn(kind, small) as server, closing(Pair(kind, small, server, adapters=adapters)) as pair:
        assert pair.share() == pair.publish(1) == ["", ""]
        label, before = server.label, loads_of(server)
        talkers = [Talker(engine, rank) for rank, engine in enumerate(pair.engines)]  # type: ignore[arg-type]
        for talker in talkers:
            asyncio.run(talker.say(ids(1, 2)))
        server.kill()
        server.start()
        for talker in reversed(talkers):  # the second rank misses the weights first
            assert asyncio.run(talker.say(ids(3))).version == 1
        assert server.label == label and loads_of(server) > before
        assert pair.publish(2) == ["", ""] and asyncio.run(talkers[1].say(ids(4))).version == 2


@both
def test_2_sent_by_both(kind: str, small: Path) -> None:
    with StandIn(kind, small) as server, closing(Pair(kind, small, server, adapters=True)) as pair:
        assert pair.share() == ["", ""]
        fleet = pair.engines[1]._fleet
        sent = fleet.policies["p"]
        assert list(server.adapters) == [sent.adapter]
        fleet.dialect.load_adapter(fleet.servers[0], sent.adapter, str(sent.folder), 20.0)
        assert list(server.adapters) == [sent.adapter]


@both
def test_4_refused_on_all_ranks(kind: str, small: Path) -> None:
    with StandIn(kind, small, features=["adapters"]) as server, closing(Pair(kind, small, server)) as pair:
        first, second = pair.share()
    assert "the server refuses to load a model's weights" in first
    assert "the first process says" in second and "the server refuses to load a model's weights" in second


# ---- (5) --------------------------------------------------------------------------------------------------
class Apart(Together):
    """Two ranks on two machines."""

    def texts(self, own: str) -> list[str]:
        return super().texts(f"host{self.rank}")


@both
def test_5_an_address_of_each_machine(kind: str, small: Path) -> None:
    with StandIn(kind, small) as server, closing(Pair(kind, small, server)) as pair:
        barrier, texts = threading.Barrier(2), ["", ""]
        pair.ranks = [Apart(rank, barrier, texts) for rank in range(2)]
        for said in pair.share():
            assert f"the processes of the run are on host0, host1, and {server.url} is another server on each" in said
        assert loads_of(server) == 0


# ---- (3) --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("beside", ["start", "url"])
def test_3_remote(beside: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    engine = "engine.remote.start=true" if beside == "start" else f"engine.remote.url={request.getfixturevalue('url')}"
    here, there = (
        played("language", tmp_path / "one", *SHORT),
        play_by_two("language", tmp_path / "two", engine, *SHORT),
    )
    alike(here, there)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a process that generates for all ranks."""
    command = [sys.executable, "-m", "palaestra.engines.serve", "--folder", str(tmp_path / "weights"), "--port", "0"]
    with subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.kill()
