"""`palaestra eval --policy` and `palaestra play --policy`: (1) a run, its exported folder, and its adapter solve the
same tasks; (2) several samples of each task; (3) an endpoint; (4) JSON; (5) teams: each role, and one policy of
several; (6) faults; (7) play.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from palaestra.api import evaluate
from palaestra.errors import UnknownName
from palaestra.policies.endpoint import EndpointPolicy
from palaestra.recipe.players import player_of
from tests.chat_server import ChatServer
from tests.commands.conftest import TINY, Command

WHOLE = {
    "name": "whole",
    "seed": 1,
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": TINY}},
    "warm_start": {"episodes": 32, "epochs": 10, "batch_tokens": 128, "optimizer": {"adamw": {"lr": 0.01}}},
    "rollout": {"tasks": 4, "group": 4, "response_tokens": 3},
    "training": {"iterations": 2, "threads": 1},
    "evaluation": {"tasks": 16},
}
ADDED = {
    "name": "added",
    "policies": {"main": {"policy": {"language": {"lora": {"rank": 4, "alpha": 8}}}, "load": "hf"}},
    "warm_start": None,
    "optimizer": {"adamw": {"lr": 0.02}},
    "regularizers": [{"entropy": {"coefficient": 0.1}}],  # so that every update changes weights
    "training": {"iterations": 4},
}
WARM = ("--temperature", 1.0, "--samples", 3, "--seed", 5, "--json")


def result(palaestra: Command, *arguments: object) -> dict[str, Any]:
    done = palaestra("eval", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads("\n".join(done.out))


def played(found: dict[str, Any]) -> list[Any]:
    return [(task["outcomes"], task["returns"]) for task in found["per_task"]]


def outcomes(found: dict[str, Any]) -> list[list[float]]:
    return [task["outcomes"] for task in found["per_task"]]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palaestra: Command) -> None:
    """runs/whole trains a language model, and hf is its export."""
    monkeypatch.chdir(tmp_path)
    Path("whole.yaml").write_text(json.dumps(WHOLE))
    Path("added.yaml").write_text(json.dumps(ADDED))
    assert palaestra("train", "whole.yaml", "--quiet").code == 0
    assert palaestra("export", "runs/whole", "hf").code == 0


def test_1_and_2_equal_results(trained: None, palaestra: Command) -> None:
    for how in ((), WARM):
        of_run = result(palaestra, "runs/whole", *how)
        assert of_run["return"]["low"] < of_run["return"]["high"], "it solves some tasks"
        for player in ("hf", "main=hf", "runs/whole"):
            assert played(result(palaestra, "whole.yaml", "--policy", player, *how)) == played(of_run)
        assert played(result(palaestra, "whole.yaml", *how)) != played(of_run), "the recipe itself is not trained"
    assert of_run["samples"] == 3 and of_run["tasks"] == 16 and of_run["seed"] == 5 and of_run["temperature"] == 1.0
    assert set(of_run["pass"]) == {"1", "2", "3"} and of_run["pass"]["1"] == of_run["success"]
    assert of_run["pass"]["3"]["value"] == sum(any(one) for one in outcomes(of_run)) / 16
    assert of_run["success"]["value"] == pytest.approx(sum(map(sum, outcomes(of_run))) / 48)
    other = result(palaestra, "runs/whole", *WARM[:-3], "--seed", 6)
    assert played(other) != played(of_run)
    first = result(palaestra, "runs/whole", "--temperature", 1.0, "--seed", 5)
    assert outcomes(first) == [one[:1] for one in outcomes(of_run)], "the first sample is that of a single one"


def test_1_adapters(trained: None, palaestra: Command) -> None:
    assert palaestra("train", "whole.yaml", "added.yaml", "--quiet").code == 0
    assert palaestra("export", "runs/added", "merged").code == 0
    for how in ((), WARM):
        of_run = result(palaestra, "runs/added", *how)
        for recipe, player in (
            ("runs/added", "merged"),
            ("runs/added", "merged/adapter"),
            ("whole.yaml", "merged"),
            ("runs/whole", "runs/added"),
        ):
            assert played(result(palaestra, recipe, "--policy", player, *how)) == played(of_run), player
    assert played(result(palaestra, "runs/added", "--policy", "hf", *WARM)) != played(of_run)
    on_base = ["whole.yaml", "policies.main.policy.language.model=hf", "--policy", "merged/adapter"]
    assert played(result(palaestra, *on_base, *WARM)) == played(of_run)


def test_1_networks(folder: Path, palaestra: Command) -> None:
    assert palaestra("export", folder, "net").code == 0
    of_run = result(palaestra, folder, *WARM)
    for player in ("net", folder):
        assert played(result(palaestra, "small.yaml", "--policy", player, *WARM)) == played(of_run)


def test_2_a_table(folder: Path, palaestra: Command) -> None:
    done = palaestra("eval", folder, "--samples", 4, "--temperature", 1, "--tasks", 6)
    text = "\n".join(done.out)
    assert done.out[0] == "echo: 6 tasks of the split eval, 4 samples of each, temperature 1, seed 1"
    assert all(word in text for word in ("success (avg@4)", "pass@2", "pass@4", "acts in an episode", "95 % interval"))
    assert "of 24; 4 samples of each task)" in done.out[-2]
    assert done.out[-1].endswith("on 6 tasks of the split eval")
    same = palaestra("eval", folder, "--samples", 2)
    assert "At temperature 0 the samples of a task are all the same." in "\n".join(same.out)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """An endpoint with one model, which always says "red"."""
    with ChatServer("red") as made:

        def models(handler: BaseHTTPRequestHandler) -> None:
            made.keys.append(handler.headers["authorization"])
            data = json.dumps({"object": "list", "data": [{"id": "fox", "object": "model"}]}).encode()
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)

        monkeypatch.setattr(made.server.RequestHandlerClass, "do_GET", models, raising=False)
        yield made


@pytest.mark.parametrize("how", [("--model", "fox"), ()])
def test_3_endpoints(
    recipe: Path, palaestra: Command, server: ChatServer, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    place = f"http://127.0.0.1:{server.server.server_address[1]}"
    found = result(palaestra, recipe, "--policy", f"{place}/v1", *how, "--tasks", 8, "--temperature", 0.5)
    assert found["policies"] == [f"{place}/v1"] and 0 < found["success"]["value"] < 1
    assert {(asked["model"], asked["temperature"], asked["path"]) for asked in server.requests} == {
        ("fox", 0.5, "/v1/chat/completions")
    }
    assert not any("sk-secret" in (key or "") for key in server.keys), "the key of another server is not sent"
    assert outcomes(result(palaestra, recipe, "--policy", place, *how, "--tasks", 8)) == outcomes(found)
    monkeypatch.setenv("MY_KEY", "sk-mine")
    result(palaestra, recipe, "--policy", place, "--key", "MY_KEY", "--tasks", 2, *how)
    assert "sk-mine" in server.keys[-1]


def test_3_anthropic(recipe: Path, palaestra: Command, server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "sk-mine")
    asked = ("--style", "anthropic", "--tasks", 2)
    result(palaestra, recipe, "--policy", server.url, *asked)
    assert {(one["model"], one["path"]) for one in server.requests} == {("fox", "/v1/messages")}
    assert not any("sk-secret" in (key or "") for key in server.keys), "the key of another server is not sent"
    endpoint = {"model": "owl", "style": "anthropic", "key": "MY_KEY"}
    evaluate(str(recipe), policy=server.url, endpoint=endpoint, evaluation={"tasks": 2})
    assert server.requests[-1]["model"] == "owl" and "sk-mine" in server.keys[-1]
    with pytest.raises(UnknownName, match="no such key"):
        evaluate(str(recipe), policy=server.url, endpoint={"secret": "sk"})
    wrong = palaestra("eval", recipe, "--policy", server.url, "--style", "antropic")
    assert wrong.code == 2 and "--style antropic" in wrong.err and "anthropic" in wrong.err


def test_3_no_endpoint(recipe: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = EndpointPolicy.__init__

    @functools.wraps(plain)
    def at_once(*given: Any, **options: Any) -> None:
        plain(*given, **options | {"retries": 0})

    monkeypatch.setattr(EndpointPolicy, "__init__", at_once)
    down = palaestra("eval", recipe, "--policy", "http://me:hidden@127.0.0.1:9/v1")
    assert down.code == 2 and "the endpoint does not list its models" in down.err and "--model" in down.err
    named = palaestra("eval", recipe, "--policy", "http://me:hidden@127.0.0.1:9/v1", "--model", "fox")
    assert named.code == 1 and "4 of 4 episodes failed (engine 4)" in "\n".join(named.out)
    assert "hidden" not in down.err + "\n".join(named.out) + named.err


def test_4_json(folder: Path, palaestra: Command) -> None:
    done = palaestra("eval", folder, "--out", "deep/found.json")
    assert done.out[-1].startswith("success ")
    written = json.loads(Path("deep/found.json").read_text())
    assert written == result(palaestra, folder)
    assert written["success"].keys() == {"value", "low", "high", "level"} and written["pass"] == {}
    assert [task["seed"] for task in written["per_task"]] and written["policies"] == ["of the recipe"]
    assert written["described"] == "4 tasks of the split eval" and written["stops"] == {"completed": 4}


TEAM = {
    "environment": {"echo": {"agents": ["left", "right"], "turns": 2}},
    "agents": {"left": {"policy": "main"}, "right": {"policy": "other"}},
    "policies": {"main": {"policy": {"network": {}}}, "other": {"policy": {"network": {}}}},
}


def test_5_teams(recipe: Path, palaestra: Command) -> None:
    Path("team.yaml").write_text(json.dumps(TEAM))
    found = result(palaestra, recipe, "team.yaml", "--policy", "other=expert")
    assert found["agents"].keys() == {"left", "right"}
    assert found["agents"]["right"]["reward/mean"] == 1.0 > found["agents"]["left"]["reward/mean"]
    table = "\n".join(palaestra("eval", recipe, "team.yaml", "--policy", "other=random").out)
    assert all(word in table for word in ("role", "left", "right", "share of tokens"))
    done = palaestra("eval", recipe, "team.yaml", "--policy", "thrid=random")
    assert done.code == 2 and "the recipe has no policy `thrid`" in done.err
    assert palaestra("train", recipe, "team.yaml", "--quiet").code == 0
    done = palaestra("eval", recipe, "team.yaml", "--policy", "runs/small")
    assert done.code == 2 and "--policy main=runs/small, --policy other=runs/small" in done.err
    both = ("--policy", "main=runs/small", "--policy", "other=runs/small")
    assert outcomes(result(palaestra, recipe, "team.yaml", *both)) == outcomes(result(palaestra, "runs/small"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("small.yaml", "--policy", "exprt"), "no policy is called `exprt`"),
        (("small.yaml", "--policy", "no/such"), "there is no such folder"),
        (("small.yaml", "--policy", "ftp://host/v1"), "the address is not one of a server"),
        (("small.yaml", "--policy", "http:///v1"), "the address is not one of a server"),
        (("small.yaml", "--policy", "http://127.0.0.1:9", "--key", "EMPTY"), "the environment variable EMPTY is empty"),
        (("small.yaml", "--policy", "empty"), "has no config.json"),
        (("small.yaml", "--samples", 0), "--samples"),
        (("net",), "palaestra eval RECIPE --policy net"),
        (("small.yaml", "--temperature", -1), "--temperature"),
    ],
)
def test_6_faults(folder: Path, palaestra: Command, arguments: tuple[object, ...], message: str) -> None:
    Path("empty").mkdir()
    assert palaestra("export", folder, "net").code == 0
    done = palaestra("eval", *arguments)
    assert done.code == 2 and message in done.err and "Traceback" not in done.err


def test_6_no_password_is_shown() -> None:
    assert str(player_of("https://me:secret@host/v1/?a=b")) == "https://host/v1?a=b"


def test_7_play(trained: None, palaestra: Command) -> None:
    warm = palaestra("play", "whole.yaml", "--policy", "hf", "--temperature", 3, "--episodes", 3).out
    of_run = palaestra("play", "runs/whole", "--temperature", 3, "--episodes", 3).out
    assert warm == of_run and sum(line.startswith("completed after 2 acts") for line in warm) == 3
    assert palaestra("play", "runs/whole", "--temperature", 0, "--episodes", 3).out != warm
    alone = palaestra("play", "echo", "turns=3", "--policy", "hf")
    assert alone.code == 0 and "completed after 3 acts" in alone.out[-1]
