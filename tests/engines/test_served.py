"""Engines of vLLM and SGLang, against the stand-in: (1) both keep the contract, and all rules of engines; (2) the
contract refuses a server that ignores new weights, adapters or salts; salts or an empty cache alone are enough; (3) in
conversations with forks, new weights and adapters, ids and log-probabilities are those of the in-process engine, also
if the server is killed and started again between requests or under them; (4) another address takes over from a server
that has died or hangs, and takes part again later; (5) a slow start is waited for, with one line; (6) faults of single
requests are asked again, and what cannot be answered fails the episode; (7) what cannot be is refused by one line;
(8) keys come from the environment and stand in no message; (9) the checks and the stand-in run from a command line;
(10) a server that computes with other weights than those it was sent is refused, before the first response and after
an update; (11) a server that computes on a CPU gets no seeds, and one line says so; (12) a server whose answers do not
name their weights is asked; what a response was drawn by is never guessed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data.protocols import Engine
from palaestra.engines import InProcessEngine
from palaestra.engines.external.dialect import Piece
from palaestra.engines.external.engine import ServedEngine, _Unsure
from palaestra.engines.external.fleet import Fleet, Served
from palaestra.engines.external.sglang import SGLangEngine
from palaestra.engines.external.vllm import VLLM, VLLMEngine
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, RecipeError
from palaestra.models.adapters import add_adapter, named_tensors
from palaestra.models.causal_lm import load_causal_lm
from palaestra.testing import check_engine
from palaestra.testing.engine_contract import check_served_engine
from palaestra.testing.stand_in import StandIn
from tests.engines.conversations import Talker, ids, small_model
from tests.extras import needs, some
from tests.messages import told

pytestmark = needs("httpx2", "peft")
KINDS: dict[str, type[ServedEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}
both = pytest.mark.parametrize("kind", KINDS)
LOADS = ("/collective_rpc", "/update_weights_from_disk")  # what gives a server whole weights
FAST: dict[str, Any] = {"patience": 20.0, "check_seconds": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    place = tmp_path_factory.mktemp("served") / "model"
    small_model(context=256).save_pretrained(place)
    return place


def loaded(folder: Path) -> Any:
    return load_causal_lm(folder).eval().requires_grad_(False)


@pytest.fixture
def engine() -> Iterator[Callable[..., ServedEngine]]:
    """Makes engines that are ended after the test."""
    made: list[ServedEngine] = []

    def make(kind: str, models: dict[str, Any], *servers: StandIn, **options: Any) -> ServedEngine:
        urls = tuple(server.url for server in servers)
        made.append(KINDS[kind](models, "cpu", **FAST | {"url": urls} | options))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
        one.shutdown()  # a second time does nothing


def said(engine: Engine, talkers: list[Talker], *, turns: int, seed: int) -> None:
    async def talk() -> None:
        await asyncio.gather(*(talker.talk(turns, seed=seed + n, entropy=False) for n, talker in enumerate(talkers)))

    asyncio.run(talk())


# ---- (1) and (2) ------------------------------------------------------------------------------------------
@both
def test_1_the_contract(kind: str, folder: Path) -> None:
    lines: list[str] = []
    with StandIn(kind, folder) as server:
        assert check_served_engine(kind, server.url, folder, tolerance=1e-4, tell=lines.append) < 1e-5
    assert len(lines) == 9 and all(line.startswith("holds") for line in lines)


@both
def test_1_the_rules_of_engines(kind: str, folder: Path) -> None:
    with StandIn(kind, folder) as server:
        check_engine(functools.partial(KINDS[kind], url=server.url), model=loaded(folder))


@both
@pytest.mark.parametrize("defect", ["unsalted", "unreset"])
def test_2_one_protection_of_the_cache_is_enough(kind: str, defect: str, folder: Path) -> None:
    with StandIn(kind, folder, defects=[defect]) as server:
        check_served_engine(kind, server.url, folder, tolerance=1e-4, skip=["adapters", "memory", "temperature"])


@both
@pytest.mark.parametrize(
    ("defects", "check"),
    [(("unsalted", "unreset"), "weights"), (("numb",), "adapters")],
    ids=["stale", "numb"],
)
def test_2_refused(kind: str, defects: tuple[str, ...], check: str, folder: Path) -> None:
    with StandIn(kind, folder, defects=defects) as server, pytest.raises(ContractError, match=f"check `{check}`"):
        check_served_engine(kind, server.url, folder, skip=["memory"], dtype="float32")


@both
def test_2_other_weights_are_refused(kind: str, folder: Path, tmp_path: Path) -> None:
    small_model(7, context=256).save_pretrained(tmp_path)
    with StandIn(kind, tmp_path) as server, pytest.raises(ContractError, match="check `log_probabilities`"):
        check_served_engine(kind, server.url, folder, skip=["weights", "adapters"], dtype="float32")


# ---- (3) --------------------------------------------------------------------------------------------------
def conversation(engine: Engine, models: dict[str, Any], *, strike: Callable[[], None] = lambda: None) -> list[Any]:
    """All turns of conversations with forks, before and after new weights and adapters."""
    talkers = [Talker(engine, number, policy=sorted(models)[number % 2]) for number in range(6)]  # type: ignore[arg-type]
    said(engine, talkers, turns=2, seed=0)
    strike()
    engine.fork(0, "branch")
    talkers.append(Talker(engine, "branch", policy=talkers[0].policy, ids=list(talkers[0].ids)))  # type: ignore[arg-type]
    said(engine, talkers, turns=2, seed=20)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in models["base"].parameters():
            weight.mul_(1.05)
        low = [(name, tensor) for name, tensor in named_tensors(models["low"]) if ".lora_" in name]
        for _, tensor in low:
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.2)
    engine.publish("base", named_tensors(models["base"]), 4)
    engine.publish("low", iter(low), 5)
    said(engine, talkers, turns=2, seed=40)
    strike()
    said(engine, talkers, turns=1, seed=60)
    return [
        (talker.policy, turn.answer.version, turn.answer.action.finish, turn.answer.action)
        for talker in talkers
        for turn in talker.turns
    ]


def two(folder: Path) -> dict[str, Any]:
    base = loaded(folder)
    return {"base": base, "low": add_adapter(base, rank=2, alpha=4.0, targets=None, seed=3).get_base_model()}


@both
@pytest.mark.parametrize("dies", [False, True], ids=["alive", "killed"])
def test_3_every_number(kind: str, dies: bool, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    here, there = two(folder), two(folder)
    expected = conversation(InProcessEngine(here), here)
    with StandIn(kind, folder) as server:
        one = engine(kind, there, server)

        def strike() -> None:
            if dies:
                server.kill()
                server.start()
                server.faults.extend(["", "drop", "", "error"])

        found = conversation(one, there, strike=strike)
        loads = [path for path, _ in server.requests if path in LOADS]
    assert loads and len(found) == len(expected)
    assert {version for _, version, *_ in found} == {0, 4, 5}
    for (*what, action), (*wanted, other) in zip(found, expected, strict=True):
        assert what == wanted and action.tokens.tolist() == other.tokens.tolist()
        assert np.abs(action.logprobs - other.logprobs).max() < 1e-4


@both
def test_3_killed_under_a_request(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model = loaded(folder)
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": model}, server)
        talker, other = Talker(one, 0), Talker(InProcessEngine({"p": model}), 0)  # type: ignore[arg-type]
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
        one.publish("p", named_tensors(model), 3)
        asyncio.run(talker.talk(1, seed=1, entropy=False))

        async def interrupted() -> None:
            server.faults.append("hang")
            waiting = asyncio.create_task(talker.talk(2, seed=2, entropy=False))
            while server.faults:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await waiting

        asyncio.run(interrupted())
        assert talker.turns[-1].answer.version == 3
        assert one.counters()["engine/lost_requests"] >= 1
    asyncio.run(other.talk(1, seed=1))
    asyncio.run(other.talk(2, seed=2))
    assert talker.ids == other.ids


@both
def test_3_a_late_answer(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    """An answer of lost weights that comes after they were sent again: they are not sent once more."""
    model = loaded(folder)
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": model}, server)
        talkers = [Talker(one, number) for number in range(4)]  # type: ignore[arg-type]
        said(one, talkers, turns=1, seed=0)
        server.kill()
        server.start()
        server.faults.append("late")
        said(one, talkers, turns=2, seed=20)
        loads = [path for path, _ in server.requests if path in LOADS]
    assert len(loads) == 3, "other weights as a test, those of the run, and these after the server was started again"


# ---- (4) and (5) ------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize("end", some(["die", "freeze"], fast=1))
def test_4_another_takes_over(kind: str, end: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model = loaded(folder)
    with StandIn(kind, folder) as first, StandIn(kind, folder) as second:
        one = engine(kind, {"p": model}, first, second)
        talkers = [Talker(one, number) for number in range(8)]  # type: ignore[arg-type]
        said(one, talkers, turns=2, seed=0)
        assert all(asked(server) for server in (first, second)), "conversations are spread"
        first.faults.append(end)
        said(one, talkers, turns=3, seed=20)
        first.kill()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
        one.publish("p", named_tensors(model), 1)
        said(one, talkers, turns=1, seed=40)
        first.start()
        before, begin, rounds = asked(first), time.monotonic(), 0
        while asked(first) == before and time.monotonic() < begin + 20:
            rounds += 1  # conversations stay where they are; new ones come to it
            again = [Talker(one, (rounds, number)) for number in range(8)]  # type: ignore[arg-type]
            said(one, again, turns=1, seed=60)
        assert asked(first) > before, "it takes part again"
        alone = InProcessEngine({"p": model})
        for talker in again:
            turn = talker.turns[-1]
            request = replace(turn.request, prompt=np.array(turn.before, np.int32))
            plain = asyncio.run(alone.generate(request)).action
            assert plain.tokens.tolist() == turn.answer.action.tokens.tolist() and turn.answer.version == 1


def asked(server: StandIn) -> int:
    return sum(path in ("/v1/completions", "/generate") for path, _ in server.requests)


@pytest.mark.parametrize("kind", some(KINDS, fast=1))
def test_5_a_slow_start(
    kind: str, folder: Path, engine: Callable[..., ServedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    with StandIn(kind, folder, slow_start=1.5) as server:
        one = engine(kind, {"p": loaded(folder)}, server)
        said(one, [Talker(one, number) for number in range(4)], turns=1, seed=0)  # type: ignore[arg-type]
        first, last = capsys.readouterr().err.strip().splitlines()
        assert first.startswith(f"engine {kind}: waiting for {server.url}, for up to 20 s (")
        assert last == f"engine {kind}: {server.url} answers."


def test_5_patience_ends(folder: Path, engine: Callable[..., ServedEngine]) -> None:
    one = engine("vllm", {"p": loaded(folder)}, url="http://127.0.0.1:9", patience=0.3)
    with pytest.raises(EpisodeFailure, match=r"127\.0\.0\.1:9 cannot be reached for 0\.3 s: ConnectError") as caught:
        asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
    assert caught.value.boundary == "engine"


# ---- (6) --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", some(KINDS, fast=1))
def test_6_single_faults(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model = loaded(folder)
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": model}, server, response_seconds=2.0, retries=2)
        talker, other = Talker(one, 0), Talker(InProcessEngine({"p": model}), 0)  # type: ignore[arg-type]
        server.faults.extend(["", "drop", "busy", "busy", "error"])
        asyncio.run(talker.talk(3, seed=1, entropy=False))
        asyncio.run(other.talk(3, seed=1))
        assert talker.ids == other.ids and not server.faults
        for fault, says in (("hang", "no response within 2 s"), ("garbage", "cannot be read")):
            server.faults.append(fault)
            with pytest.raises(EpisodeFailure, match=says):
                asyncio.run(talker.say(ids(3)))
        for fault, says in (("drop", "cuts the connection"), ("error", "Internal server error")):
            server.faults.extend([fault] * 3)
            with pytest.raises(EpisodeFailure, match=says):
                asyncio.run(talker.say(ids(3)))
        asyncio.run(talker.talk(1, seed=4, entropy=False))
        asyncio.run(other.talk(1, seed=4))
        assert talker.ids == other.ids, "a request that failed leaves its session as it was"


@both
def test_6_closed_and_busy(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": loaded(folder)}, server)

        async def play() -> None:
            doomed = asyncio.create_task(Talker(one, "closed").say(ids(1), max_tokens=200))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            with pytest.raises(ContractError, match="generating"):
                await Talker(one, "closed").say(ids(1))  # type: ignore[arg-type]
            one.close("closed")
            with pytest.raises(EpisodeFailure, match="closed while it was generating"):
                await doomed

        asyncio.run(play())
        with pytest.raises(EpisodeFailure, match="the vocabulary has 97"):
            asyncio.run(Talker(one, 0).say(ids(500)))  # type: ignore[arg-type]


@both
def test_6_a_shorter_context_of_the_server(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    with StandIn(kind, folder, max_length=64) as server:
        one = engine(kind, {"p": loaded(folder)}, server)
        talker = Talker(one, 0)  # type: ignore[arg-type]
        answer = asyncio.run(talker.say(ids(*[3] * 40), max_tokens=100))
        assert answer.action.finish.value == "context" and len(talker.ids) == one.context("p") < 65
        with pytest.raises(EpisodeFailure, match="no room"):
            asyncio.run(talker.say(ids(3)))


# ---- (7) and (8) ------------------------------------------------------------------------------------------
def test_7_refused_at_once(folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model, other = loaded(folder), loaded(folder)
    with told(RecipeError, "is not like http"):
        engine("vllm", {}, url="127.0.0.1:8000")
    with told(RecipeError, "holds a password"):
        engine("sglang", {}, url="http://me:secret@127.0.0.1:8000")
    with told(RecipeError, "`folder`"):
        engine("vllm", {}, url="http://10.0.0.7:8000")
    with told(ContractError, "one base model"):
        engine("vllm", {"a": model, "b": other}, url="http://127.0.0.1:9")
    one = engine("vllm", {"p": model}, url="http://127.0.0.1:9")
    with told(PalaestraError, "the highest temperature that the server accepts is 2"):
        asyncio.run(Talker(one, 0).say(ids(1), temperature=2.5))  # type: ignore[arg-type]
    with told(PalaestraError, "entropy"):
        asyncio.run(Talker(one, 0).say(ids(1), entropy=True))  # type: ignore[arg-type]


@both
@pytest.mark.parametrize(
    ("given", "word"),
    [({"features": ("adapters",)}, "weights"), ({"features": ("weights",)}, "adapter"), ({"scaled": False}, "temp")],
    ids=["weights", "adapters", "raw"],
)
def test_7_refused_by_the_server(
    kind: str, given: dict[str, Any], word: str, folder: Path, engine: Callable[..., ServedEngine]
) -> None:
    with StandIn(kind, folder, port=0, **given) as server:
        one = engine(kind, two(folder), server)
        with pytest.raises(PalaestraError, match=word) as caught:
            asyncio.run(Talker(one, 0, policy="low").say(ids(1, 2), temperature=0.5))  # type: ignore[arg-type]
        text = str(caught.value)
        assert type(caught.value) is PalaestraError and text.count("\n") < 8
        assert "Start" in text or "see" in text


@both
def test_7_another_program_listens(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    other = "sglang" if kind == "vllm" else "vllm"
    with StandIn(other, folder) as server:
        one = engine(kind, {"p": loaded(folder)}, server)
        with pytest.raises(PalaestraError, match=f"it does not answer as a server of {kind}"):
            asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": loaded(folder)}, server, model="another")
        with pytest.raises(PalaestraError, match="serves no model `another`"):
            asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]


@both
def test_8_keys(kind: str, folder: Path, engine: Callable[..., ServedEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(kind, folder, key="a-secret") as server:
        monkeypatch.setenv("MY_KEY", "a-secret")
        one = engine(kind, {"p": loaded(folder)}, server, key="MY_KEY")
        asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
        monkeypatch.setenv(f"{kind.upper()}_API_KEY", "wrong-one")
        one = engine(kind, {"p": loaded(folder)}, server)
        with pytest.raises(PalaestraError, match=f"Set the environment variable {kind.upper()}_API_KEY") as caught:
            asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
        assert "wrong-one" not in str(caught.value)


def test_8_the_folders_go(folder: Path, engine: Callable[..., ServedEngine], tmp_path: Path) -> None:
    models = two(folder)
    with StandIn("vllm", folder) as server:
        one = engine("vllm", models, server, folder=str(tmp_path / "shared"))
        conversation(one, models)
        kept = sorted(place.name.rpartition("-")[0] for place in (tmp_path / "shared").glob("*/*"))
        assert kept == ["low", "model"], "earlier versions are removed"
        assert len(server.adapters) == 1, "earlier adapters are unloaded"
        one.shutdown()
        assert not list((tmp_path / "shared").iterdir()) and not server.adapters


# ---- (9) --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@both
def test_9_from_the_command_line(kind: str, folder: Path) -> None:
    command = [sys.executable, "-m", "palaestra.testing.stand_in", "--kind", kind, "--model", str(folder)]
    with subprocess.Popen([*command, "--slow-start", "1"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        check = [sys.executable, "-m", "palaestra.testing.engine_contract", "--kind", kind, "--url", url]
        done = subprocess.run([*check, "--model", str(folder)], capture_output=True, text=True, timeout=200)
        process.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds") == 9 and "keeps the contract" in done.stdout


def test_4_an_adapter_stays_while_a_server_loads_it(tmp_path: Path) -> None:
    """A server that comes back may be loading the last version when the next one is published."""
    settings: dict[str, Any] = dict.fromkeys(("folder", "server_folder", "base"))
    fleet = Fleet(VLLM(), [], **settings, initial=False, patience=1.0, seconds=1.0, health_seconds=1.0)
    folder = tmp_path / "first"
    folder.mkdir()
    one = Served(model=None, version=1, scalings={"layer": 1.0}, adapter="first", folder=folder)
    with fleet._kept(one) as (name, kept):
        one.adapter, one.folder = "second", tmp_path / "second"
        fleet._stale["first"] = folder  # as `publish` does
        fleet._drop_stale()
        assert (name, kept) == ("first", folder) and folder.is_dir()
    fleet._drop_stale()
    assert not folder.exists() and not fleet._stale


# ---- (10) to (12) -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "defect"), [("vllm", "deaf"), ("sglang", "deaf"), ("vllm", "tied")])
def test_10_refused_before_the_first_response(
    kind: str, defect: str, folder: Path, engine: Callable[..., ServedEngine]
) -> None:
    """The server has loaded the weights of the run itself. So its first answers would look right."""
    with StandIn(kind, folder, defects=[defect]) as server:
        one = engine(kind, {"p": loaded(folder)}, server)
        with pytest.raises(PalaestraError, match="the server says that it has taken over new weights"):
            asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]


@both
def test_10_refused_after_an_update(kind: str, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model = loaded(folder)
    with StandIn(kind, folder) as server:
        one = engine(kind, {"p": model}, server)
        asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
        server.defects.add("deaf")
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.02)  # a small update: all log-probabilities stay near those of before
        with pytest.raises(PalaestraError, match="the server says that it has taken over new weights"):
            one.publish("p", named_tensors(model), 1)


def test_10_adapters_alone_need_no_test(folder: Path, engine: Callable[..., ServedEngine]) -> None:
    models = two(folder)
    with StandIn("vllm", folder) as server:
        one = engine("vllm", {"low": models["low"]}, server)
        asyncio.run(Talker(one, 0, policy="low").say(ids(1)))  # type: ignore[arg-type]
        loads = [path for path, _ in server.requests if path in LOADS]
    assert len(loads) == 1


@pytest.mark.parametrize("given", [{"cpu": True}, {"features": ("adapters",)}], ids=["says so", "is told"])
def test_11_no_seeds(
    given: dict[str, Any], folder: Path, engine: Callable[..., ServedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {} if "cpu" in given else {"seeds": False, "initial_weights": False}
    with StandIn("vllm", folder, **given) as server:
        one = engine("vllm", {"p": loaded(folder)}, server, **options)
        asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
        assert [said for path, said in server.requests if path == "/v1/completions" and "seed" in said] == []
    said = "computes on a CPU and cannot take seeds, so requests have none." in capsys.readouterr().err
    assert said == ("cpu" in given)


@pytest.mark.parametrize("named", [True, False])
def test_12_which_weights(named: bool, folder: Path, engine: Callable[..., ServedEngine]) -> None:
    model, features = loaded(folder), ("weights", *(["versions"] if named else []))
    with StandIn("vllm", folder, features=features) as server:
        one = engine("vllm", {"p": model}, server)
        talker, other = Talker(one, 0), Talker(InProcessEngine({"p": model}), 0)  # type: ignore[arg-type]
        asyncio.run(talker.talk(1, seed=1, entropy=False))
        server.label = "of another run"  # as if another run had sent its weights
        asyncio.run(talker.talk(2, seed=2, entropy=False))
        asked_which = [path for path, _ in server.requests if path == "/weight_info"]
        assert one.counters()["engine/faults"] == 1 and server.label == one._fleet.label
    assert bool(asked_which) != named
    asyncio.run(other.talk(1, seed=1))
    asyncio.run(other.talk(2, seed=2))
    assert talker.ids == other.ids


@pytest.mark.parametrize(("finish", "drawn_by"), [("abort", 3), ("stop", None)])
def test_12_weights_that_come_when_a_response_ends(
    finish: str, drawn_by: int | None, folder: Path, engine: Callable[..., ServedEngine]
) -> None:
    with StandIn("vllm", folder, features=("weights",)) as server:
        one = engine("vllm", {"p": loaded(folder)}, server)
        asyncio.run(Talker(one, 0).say(ids(1)))  # type: ignore[arg-type]
        served, place = one._fleet.policies["p"], one._fleet.servers[0]
        served.versions |= {"older": 3, one._fleet.label: 4}
        piece = Piece([5], [-1.0], finish)
        if drawn_by is None:
            with pytest.raises(_Unsure):
                asyncio.run(one._labeled(place, served, piece, "older"))
        else:
            piece = asyncio.run(one._labeled(place, served, piece, "older"))
            assert one._versions(served, piece, 4) == [drawn_by]
