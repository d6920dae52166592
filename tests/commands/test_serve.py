"""`palaestra serve`: (1) a model folder, a run and an adapter are served; the first line has the address, and the
command ends cleanly at Ctrl-C and SIGTERM, also while it answers; (2) other machines need a secret; (3) what cannot be
served gets one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import RunSetup
from palaestra.errors import MissingExtra, PalaestraError
from palaestra.policies.adapter import AdapterPolicy, LoraSettings
from palaestra.policies.language import LanguagePolicy
from palaestra.recipe import load
from palaestra.training.start import train
from tests.extras import absent, needs, some
from tests.house.source_text import ROOT
from tests.messages import told

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not absent(*pytestmark.args):
    import httpx
    import openai

    from palaestra.commands import serve
    from palaestra.gateway.server import TOKEN
    from palaestra.http.addresses import is_loopback
    from tests.chat.conversations import policy_of

OPTIONS: dict[str, Any] = {
    "host": "127.0.0.1", "port": 0, "policy": None, "checkpoint": None, "base": None, "name": None, "device": "cpu",
    "dtype": "float32", "memory": "64MB", "max_length": None, "max_tokens": 16, "limits": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with the template of Qwen2.5."""
    place = Path(tmp_path_factory.mktemp("model")) / "tiny"
    policy_of("qwen2_5", place)
    return place


@contextlib.contextmanager
def command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of `palaestra serve`, and its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "palaestra", "serve", "--port", "0", "--memory", "64MB", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()


def address_in(line: str) -> str:
    found = re.search(r"http://\S+/v1", line)
    assert found is not None, line
    return found[0]


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], fast=1))
def test_1_a_folder_until_a_signal_comes(folder: Path, number: int) -> None:
    with command(str(folder), "--max-tokens", "8") as (process, line):
        assert line.startswith("serving tiny at http://127.0.0.1:")
        client = openai.OpenAI(base_url=address_in(line), api_key="none", max_retries=0)
        ask = client.chat.completions.create
        messages: Any = [{"role": "user", "content": "hi"}]
        assert ask(model="tiny", messages=messages).usage.completion_tokens <= 8
        ends: list[Any] = []

        def long() -> None:
            try:
                ends.append(ask(model="tiny", messages=messages, max_tokens=30_000))
            except openai.OpenAIError as error:
                ends.append(error)

        thread = threading.Thread(target=long)
        thread.start()
        time.sleep(1)
        process.send_signal(number)
        process.send_signal(number)  # the second one does not wait for replies
        assert process.wait(20) == 0
        thread.join(20)
        assert len(ends) == 1
        rest = process.stdout.read()  # type: ignore[union-attr]
        assert rest == "ended\n", rest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a policy made on the spot."""
    place = Path(tmp_path_factory.mktemp("run")) / "echo"
    recipe = {
        "environment": {"echo": {}},
        "policies": {"main": {"policy": {"language": {"hidden": 32, "layers": 1, "heads": 2, "context": 128}}}},
        "agents": {"*": {"policy": "main"}},
        "warm_start": {"episodes": 16, "epochs": 1},
    }
    overrides = [f"run={place}", "training.iterations=1", "rollout.tasks=2", "rollout.group=2", "evaluation.tasks=2"]
    found = load([recipe], [*overrides, "advantage=grpo"])
    train(found.settings, recipe=found.to_json(), quiet=True)
    return place


def served(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Any, **options: Any) -> Any:
    """What the command would serve: its application, and its first line."""
    made: dict[str, Any] = {}

    def instead(app: Any, rules: Any, listening: Any, *, ready: Any) -> None:
        made["app"] = app
        capsys.readouterr()
        ready()
        made["line"] = capsys.readouterr().out

    monkeypatch.setattr(serve, "serve_until_signal", instead)
    serve.run(model=str(model), **(OPTIONS | options))
    return made


def test_1_a_run(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert served(monkeypatch, capsys, run)["line"].startswith("serving main at http://127.0.0.1:")
    assert served(monkeypatch, capsys, run, name="gpt")["line"].startswith("serving gpt at ")
    with command(str(run)) as (_, line):
        client = openai.OpenAI(base_url=address_in(line), api_key="none")
        made = client.chat.completions.create(model="main", messages=[{"role": "user", "content": "say red"}])
        assert made.choices[0].finish_reason in ("stop", "length") and made.usage.completion_tokens > 0


def test_1_an_adapter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = LanguagePolicy("main", RunSetup(), model=str(folder))
    AdapterPolicy.alone_on(base, LoraSettings(rank=2), seed=0).save(str(tmp_path))
    line = served(monkeypatch, capsys, tmp_path / "adapter", base=str(folder))["line"]
    assert line.startswith("serving adapter at ")


def test_2_other_machines(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_loopback("localhost") and is_loopback("127.0.0.9") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
    with told(PalaestraError, TOKEN):
        serve.run(model=str(folder), **(OPTIONS | {"host": "0.0.0.0"}))
    monkeypatch.setenv(TOKEN, "a-secret")
    line = served(monkeypatch, capsys, folder, host="0.0.0.0")["line"]
    assert "0.0.0.0" in line and "a-secret" not in line
    with command(str(folder), **{TOKEN: "a-secret"}) as (_, line):
        assert httpx.get(f"{address_in(line)}/models").status_code == 401
        known = {"authorization": "Bearer a-secret"}
        assert httpx.get(f"{address_in(line)}/models", headers=known).status_code == 200


def test_3_what_cannot_be_served(folder: Path, run: Path, tmp_path: Path) -> None:
    for model, options, word in [
        ("no/such-model", {}, "no such folder"),
        (str(folder), {"policy": "main"}, "this is no run folder"),
        (str(run), {"policy": "other"}, "no policy `other`"),
        (str(run), {"checkpoint": 77}, "no checkpoint of iteration 77"),
    ]:
        with told(PalaestraError, word):
            serve.run(model=model, **(OPTIONS | options))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PalaestraError, match="cannot listen there"):
            serve.run(model=str(folder), **(OPTIONS | {"port": port}))
    (tmp_path / "adapter_config.json").write_text("{}")
    with told(PalaestraError, "does not say on which model"):
        serve.run(model=str(tmp_path), **OPTIONS)
    for text, word in (
        ("[" * 100_000, "nested more than"),
        ("[]", "no keys"),
        ('{"base_model_name_or_path": [1]}', "not say"),
    ):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(PalaestraError, match=word):
            serve.run(model=str(tmp_path), **OPTIONS)


def test_3_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with told(MissingExtra, "palaestra[serve]"):
        serve.run(model=str(folder), **OPTIONS)
