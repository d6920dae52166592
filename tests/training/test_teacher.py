"""A warm start with a teacher: (1) a model behind an endpoint plays the tasks, and only the episodes that it solves are
cloned, as ids of the student, which then acts so; (2) the run says how many are cloned, and its folder holds no key;
(3) if none is solved, the run ends and says what the best was; (4) an environment needs no expert; (5) what cannot work
is refused; (6) kept weights belong to one teacher at one address; (7) calls of tools become calls as the student's chat
template writes them, and the texts that a role reads are its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.chat import FullHistory
from palaestra.data import Action, Observation
from palaestra.data.protocols import Response, Sampling
from palaestra.errors import NoSignal, PalaestraError, RecipeError
from palaestra.policies.scripted import ScriptedSession
from palaestra.recipe import load
from palaestra.rollout.teaching import TaughtSession
from palaestra.training.setup import build_setup
from palaestra.training.start import train
from palaestra.training.warm_start import Clones, kept_line, warm_start
from tests.chat_server import ChatServer
from tests.extras import needs
from tests.messages import told
from tests.training.conftest import ECHO

pytestmark = needs("openai")
TEACHER: dict[str, Any] = {"endpoint": {"model": "large"}}
KEY = "a-secret-of-mine"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A model that says "red" to everything."""
    with ChatServer("red") as started:
        monkeypatch.setenv("OPENAI_BASE_URL", started.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield started


def recipe(**more: Any) -> dict[str, Any]:
    warm = {"teacher": TEACHER, "episodes": 24, "epochs": 30, "batch_tokens": 256, "optimizer": {"adamw": {"lr": 1e-2}}}
    return ECHO | {"environment": {"echo": {"turns": 1}}, "warm_start": warm | more}


def asked(server: ChatServer, word: str = "") -> int:
    """How many requests ask for this word."""
    return sum(word in body["messages"][-1]["content"] for body in server.requests)


def test_1_2_what_is_solved_is_cloned(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load([recipe()], [f"run={tmp_path / 'run'}", "training.iterations=1"])
    setup = build_setup(found.settings)
    metrics = warm_start(setup, found.settings, say=lambda *_: None)
    red = asked(server, "red")
    assert len(server.requests) == 24 and 0 < red < 24
    assert metrics["warm_start/demonstrations"] == red and metrics["warm_start/left_out"] == 24 - red
    assert metrics["warm_start/main/loss"] < 0.2
    body = server.requests[0]
    assert body["model"] == "large" and body["max_tokens"] == 3 and set(server.keys) == {f"Bearer {KEY}"}

    train(found.settings, recipe=found.to_json())
    said = capsys.readouterr()
    assert f"warm start: {red} of the teacher's 24 episodes are cloned" in said.out + said.err
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert files and not any(KEY.encode() in file.read_bytes() for file in files)
    (first, *_) = map(json.loads, (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines())
    assert first["step"] == 0 and first["eval/echo/invalid"] == 0


def test_3_nothing_is_solved(server: ChatServer) -> None:
    server.answers[:] = ["nothing of the kind"]
    settings = load([recipe(episodes=4)]).settings
    setup = build_setup(settings)
    with told(NoSignal, "none of its 4 episodes had an outcome of 1: the best outcome was 0."):
        warm_start(setup, settings, say=lambda *_: None)
    server.answers[:] = [(401, "who are you?")]
    with pytest.raises(PalaestraError, match="who are you"):
        warm_start(setup, settings, say=lambda *_: None)


def test_3_a_lower_threshold(server: ChatServer) -> None:
    settings = load([recipe(episodes=4, epochs=1, least=0.0)]).settings
    metrics = warm_start(build_setup(settings), settings, say=lambda *_: None)
    assert metrics["warm_start/demonstrations"] == 4 and metrics["warm_start/left_out"] == 0


def test_2_failures_are_counted(server: ChatServer) -> None:
    server.answers[:] = [(400, "not now"), "red"]
    settings = load([recipe(episodes=4, epochs=1, least=0.0)]).settings
    metrics = warm_start(build_setup(settings), settings, say=lambda *_: None)
    assert metrics["warm_start/left_out"] == metrics["warm_start/failed"] == 1
    assert kept_line(metrics) == "warm start: 3 of the teacher's 4 episodes are cloned; 1 failed"


def test_4_no_expert(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text("\n".join(json.dumps({"prompt": f"color {n}?"}) for n in range(12)))
    (tmp_path / "rewards.py").write_text("def red(completion):\n    return float(completion == 'red')\n")
    data = {"path": str(tmp_path / "questions.jsonl"), "reward": f"{tmp_path}/rewards.py:red"}
    settings = load([recipe(episodes=4, epochs=1) | {"environment": {"dataset": data}}]).settings
    metrics = warm_start(build_setup(settings), settings, say=lambda *_: None)
    assert metrics["warm_start/demonstrations"] == 4
    settings = load([recipe(teacher=None) | {"environment": {"dataset": data}}]).settings
    with pytest.raises(RecipeError, match=r"warm_start\.teacher"):
        warm_start(build_setup(settings), settings, say=lambda *_: None)


NETWORK = {"main": {"policy": {"network": {"hidden": [8]}}}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"warm_start": {"teacher": TEACHER, "noise": 0.1}}, "ignores `noise`"),
        ({"warm_start": {"teacher": TEACHER, "guidance": 0.1}}, "ignores `guidance`"),
        ({"warm_start": {"least": 0.5}}, "ignores `least`"),
        ({"warm_start": {"teacher": {"language": {"hidden": 16}}}}, "palaestra serve"),
        ({"warm_start": {"teacher": TEACHER}, "policies": NETWORK}, "policy `main` generates no tokens"),
    ],
)
def test_5_refused(more: dict[str, Any], said: str, server: ChatServer) -> None:
    with told(RecipeError, said):
        settings = load([ECHO | {"warm_start": {}} | more]).settings
        warm_start(build_setup(settings), settings, say=lambda *_: None)
    assert not server.requests


def test_5_a_context_that_it_cannot_follow(server: ChatServer) -> None:
    settings = load([recipe()], ["agents.*.context=window"]).settings
    with told(RecipeError, "cannot follow the context Window"):
        warm_start(build_setup(settings), settings, say=lambda *_: None)
    assert not server.requests


def test_5_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    settings = load([recipe()]).settings
    with told(RecipeError, "the environment variable OPENAI_BASE_URL is empty"):
        warm_start(build_setup(settings), settings, say=lambda *_: None)


def test_6_kept_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def place(address: str, **more: Any) -> Path:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        return Clones(str(tmp_path), load([recipe(**more)]).settings).path

    one = place("http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    assert place("http://127.0.0.1:1/v1") == one
    other = place("http://127.0.0.1:2/v1"), place("http://127.0.0.1:1/v1", teacher={"endpoint": {"model": "small"}})
    assert len({one, *other, place("http://127.0.0.1:1/v1", least=0.5)}) == 4
    assert place("http://user:password@127.0.0.1:1/v1?token=a") == one, "neither a password nor a token counts"
    for option in ("timeout_s", "retries", "in_flight"):
        assert place("http://127.0.0.1:1/v1", teacher={"endpoint": {"model": "large", option: 3}}) == one, option
    sampled = load([recipe(), {"rollout": {"temperature": 0.3}}]), load([recipe(), {"agents": {"*": {"top_p": 0.5}}}])
    assert len({one, *(Clones(str(tmp_path), found.settings).path for found in sampled)}) == 3


def test_6_sampling_counts_with_a_teacher_only(tmp_path: Path) -> None:
    found = [load([ECHO], overrides).settings for overrides in ([], ["rollout.temperature=0.3"])]
    assert len({Clones(str(tmp_path), settings).path for settings in found}) == 1


CALL = '<tool_call>\n{"name": "find", "arguments": {"id": 7, "words": "a b"}}\n</tool_call>'


@needs("trl")
@pytest.mark.parametrize("name", ["qwen3", "llama3"])
@pytest.mark.parametrize("text", ["blue", CALL])
def test_7_calls(name: str, text: str, tmp_path: Path) -> None:
    from tests.chat.conversations import find, policy_of

    policy = policy_of(name, tmp_path)

    async def answer(*_: Any) -> Action:
        return Action(text=text)

    student = policy.session(context=FullHistory(), sampling=Sampling(), key=0)
    session = TaughtSession(ScriptedSession(answer), student)
    observation = Observation(text="Find seven.", tools=(find.declaration(),))
    response: Response = asyncio.run(session.act(observation, seed=0))
    written = policy.renderer.text(response.action.tokens, tools=session.tools)
    assert response.action.text == written and len(response.action.tokens) > 1
    calls = policy.renderer.calls(written, session.tools).calls
    assert [(one.name, dict(one.arguments)) for one in calls] == (
        [] if text == "blue" else [("find", {"id": 7, "words": "a b"})]
    )
