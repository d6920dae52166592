"""Runs whose engine is a server of vLLM or SGLang (the stand-in): (1) ids are those of a run with the in-process
engine, and log-probabilities are equal up to rounding, with whole weights and with adapters; (2) also if the server is
killed between iterations or under a request, and with its memory freed during updates; (3) the start compares engine
and trainer, reports the numbers, and refuses a server with other weights; (4) copies that act in the background use a
server too; (5) `plan` names the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.commands import plan
from palaestra.data.protocols import Request, Response
from palaestra.engines.external.engine import ServedEngine
from palaestra.errors import ContractError
from palaestra.recipe import load
from palaestra.store.episodes import EpisodeLog
from palaestra.store.metrics import MetricsLog
from palaestra.testing import TinyModel
from palaestra.testing.engine_contract import ENGINES
from palaestra.testing.stand_in import StandIn
from palaestra.training.setup import build_setup
from tests.extras import needs
from tests.training.conftest import ECHO, curve

pytestmark = needs("httpx2", "peft")
Run = Callable[..., Path]
both = pytest.mark.parametrize("kind", ["vllm", "sglang"])
SHORT = ("training.iterations=3", "evaluation.tasks=4")
LORA = ("policies.main.policy.language.lora={rank: 4}", "optimizer.adamw.lr=1e-2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of the small recipe, and other weights."""
    place = tmp_path_factory.mktemp("served") / "model"
    model = build_setup(load([ECHO]).settings).policies["main"].model
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5.0 if weight.dim() > 1 else 1.0)
    model.save_pretrained(place)
    return place


def served(kind: str, *servers: StandIn, **options: Any) -> str:
    return "engine=" + json.dumps({kind: {"url": [server.url for server in servers], "patience": 20, **options}})


def played(run: Path) -> list[Any]:
    """All steps that the run recorded: ids, and log-probabilities."""
    return [(step.action.tokens.tolist(), step.action.logprobs) for step in steps(run)]


def steps(run: Path) -> list[Any]:
    return [step for _, _, played in EpisodeLog(run).read() for step in played.steps]


def close(one: Path, other: Path) -> None:
    """Two runs have the same ids, and almost the same log-probabilities and metrics."""
    left, right = played(one), played(other)
    assert left and [ids for ids, _ in left] == [ids for ids, _ in right]
    assert max(np.abs(np.subtract(a, b)).max() for (_, a), (_, b) in zip(left, right, strict=True)) < 1e-4
    for a, b in zip(curve(one), curve(other), strict=True):
        shared = {name for name in a.keys() & b.keys() if name.startswith(("reward", "policy/", "eval"))}
        assert shared and all(a[name] == pytest.approx(b[name], rel=1e-2, abs=1e-4) for name in shared)


@both
@pytest.mark.parametrize("extra", [(), LORA], ids=["whole", "adapter"])
def test_1_a_run_is_the_same(kind: str, extra: tuple[str, ...], folder: Path, echo: Run) -> None:
    with StandIn(kind, folder) as server:
        there = echo("there", served(kind, server), *SHORT, *extra)
        loads = [path for path, _ in server.requests if "lora" in path or "weights" in path or "rpc" in path]
    assert len(loads) >= 3, "each update was taken over"
    close(there, echo("here", *SHORT, *extra))


@both
def test_2_killed_and_asleep(kind: str, folder: Path, echo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(kind, folder) as server:
        plain, waked = ServedEngine.wake, 0

        def wake(self: ServedEngine) -> None:
            nonlocal waked
            waked += 1
            if waked == 2:
                server.kill()
                server.start()
            plain(self)

        monkeypatch.setattr(ServedEngine, "wake", wake)
        there = echo("there", served(kind, server, free_memory=True), *SHORT)
        assert waked == 3
    close(there, echo("here", *SHORT))


@both
def test_2_killed_under_a_request(kind: str, folder: Path, echo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(kind, folder) as server:
        plain, asked = ServedEngine.generate, 0

        async def generate(self: ServedEngine, request: Request) -> Response:
            nonlocal asked
            asked += 1
            if asked != 40:  # 32 requests are one rollout
                return await plain(self, request)
            server.faults.append("hang")
            waiting = asyncio.create_task(plain(self, request))
            while server.faults:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            return await waiting

        monkeypatch.setattr(ServedEngine, "generate", generate)
        there = echo("there", served(kind, server), *SHORT)
    lost = [line.get("engine/lost_requests", 0) for line in MetricsLog(there).timings.read()]
    assert asked > 40 and sum(lost) >= 1
    close(there, echo("here", *SHORT))


def test_3_compared_at_the_start(folder: Path, echo: Run) -> None:
    with StandIn("vllm", folder) as server, pytest.raises(ContractError, match="leave out `initial_weights: false`"):
        echo("other", served("vllm", server, initial_weights=False), *SHORT)


@both
def test_3_the_numbers_are_told(kind: str, tmp_path: Path) -> None:
    policy = TinyModel()
    policy.model.save_pretrained(tmp_path)
    with StandIn(kind, tmp_path) as server:
        policy.engine = ENGINES[kind]({"main": policy.model}, "cpu", url=server.url, initial_weights=False)
        policy.check_numbers()
        policy.engine.shutdown()
    (line,) = policy.notes
    assert line.startswith("engine and trainer: log-probabilities of policy main differ by ") and "e-0" in line


@both
def test_4_copies_that_act(kind: str, folder: Path, echo: Run) -> None:
    with StandIn(kind, folder) as server:
        run = echo("run", served(kind, server), "training.max_staleness=1", *SHORT)
        loads = [path for path, _ in server.requests if "weights" in path or "rpc" in path]
    assert len(loads) >= 3 and [line["step"] for line in curve(run)][-1] == 3
    given = ([one.version] if one.action.versions is None else one.action.versions.tolist() for one in steps(run))
    drawn = {version for versions in given for version in versions}
    assert len(drawn) > 1 and drawn <= set(range(6)), "each token has the version that drew it"


def test_5_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = TinyModel()
    model.save(str(tmp_path / "model"))
    recipe = tmp_path / "served.yaml"
    recipe.write_text(
        json.dumps(
            {
                "name": "served",
                "environment": {"echo": {}},
                "policies": {"main": {"policy": {"language": {"model": str(tmp_path / "model"), "lora": {"rank": 2}}}}},
                "engine": {"vllm": {"url": "http://127.0.0.1:8000"}},
            }
        )
    )
    plan.run(recipe=[str(recipe)])
    shown = capsys.readouterr().out
    assert "vllm at http://127.0.0.1:8000 generates, with weights and cache in its own memory" in shown
    assert "each update of main writes" in shown and "cache of main" not in shown
