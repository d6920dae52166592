"""OpenEnv: (1) the contract holds in process and over a server on the loopback; (2) both give the same episode;
(3) a single field is written as it is, several as a call; (4) rewards, ends, legal choices; (5) an unreadable answer
changes nothing; (6) a lost server fails the episode, not the run; (7) bad options are refused; (8) the tools of an MCP
environment are listed and called, in process and over a server, and their errors and images are shown;
(9) the expert is a function of one's own; (10) metadata beside other fields is kept, and the success that it tells
counts without `success_at`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Action, StepResult, Task, ToolCall
from palaestra.data.abilities import has
from palaestra.envs.adapters.openenv.world import AGENT, OpenEnv
from palaestra.errors import (
    ContractError,
    EpisodeFailure,
    InvalidData,
    MissingExtra,
    PalaestraError,
    RecipeError,
    UnknownName,
)
from palaestra.registry import part
from palaestra.testing import check_environment
from tests.extras import imported, needs
from tests.messages import told

pytestmark = needs("openenv")

SOURCE = '''
import random
from typing import Literal

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Number(Action):
    number: int = Field(ge=0, lt=8, description="your guess")


class Heard(Observation):
    said: str
    tries: int = 0
    choices: list[int] = []


class Guess(Environment[Number, Heard, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, top=8, **kwargs):
        self.secret = random.Random(seed).randrange(top)
        self._state = State(step_count=0)
        return Heard(said=f"guess below {top}", choices=list(range(top)))

    def step(self, action: Number, timeout_s=None, **kwargs):
        self._state.step_count += 1
        tries = self._state.step_count
        if action.number == self.secret:
            return Heard(said="right", tries=tries, done=True, reward=1.0)
        way = "higher" if action.number < self.secret else "lower"
        return Heard(said=way, tries=tries, choices=list(range(8)), reward=-0.1)

    @property
    def state(self):
        return self._state


class Move(Action):
    """Move on the board."""
    x: int
    y: int = 0
    kind: Literal["walk", "jump"] = "walk"


class Telling(Guess):
    def step(self, action: Number, timeout_s=None, **kwargs):
        seen = super().step(action)
        seen.metadata = {"hint": "think", "is_success": action.number == self.secret}
        return seen


class Board(Environment):
    def reset(self, seed=None, episode_id=None):
        return Heard(said="at 0 0")

    async def step_async(self, action: Move, timeout_s=None, **kwargs):
        return Heard(said=f"{action.kind} to {action.x} {action.y}", reward=None, done=action.kind == "jump")

    def step(self, action: Move, timeout_s=None, **kwargs):
        raise AssertionError("the async form is there")

    @property
    def state(self):
        return State()


class Vague(Board):
    def step(self, action, **kwargs):
        pass


class Stranger:
    pass
'''


ECHO = '''
import io

from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolObservation
from openenv.core.env_server.types import Observation, State
from palaestra.data import ToolCall
from PIL import Image as Drawn


class Echo(MCPEnvironment):
    """OpenEnv's echo environment, with a tool that fails, one that draws, and one that ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("echo_env")

        @mcp.tool
        def echo_message(message: str) -> str:
            """Echo the message."""
            return message

        @mcp.tool
        def echo_with_length(message: str) -> dict:
            """Echo the message with its length."""
            return {"message": message, "length": len(message)}

        @mcp.tool
        def fail() -> str:
            """Fail."""
            raise RuntimeError("broken")

        @mcp.tool
        def draw() -> Image:
            """Draw."""
            file = io.BytesIO()
            Drawn.new("RGB", (3, 2), "red").save(file, "PNG")
            return Image(data=file.getvalue(), format="png")

        @mcp.tool
        def finish(word: str) -> str:
            """End the episode."""
            return word

        super().__init__(mcp)
        self._state = State(step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(step_count=0)
        return Observation(done=False, reward=0.0, metadata={"status": "ready", "message": "Echo environment ready!"})

    async def step_async(self, action, timeout_s=None, **kwargs):
        seen = await super().step_async(action, timeout_s, **kwargs)
        if isinstance(seen, CallToolObservation) and seen.tool_name == "finish":
            seen.done, seen.reward = True, 0.5
        return seen

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=0.0, metadata={"error": "unknown action"})

    @property
    def state(self):
        return self._state


class Empty(Echo):
    def __init__(self):
        MCPEnvironment.__init__(self, FastMCP("empty"))


def longer(fields):
    content = (fields.get("result") or {}).get("content")
    return float(len(content[0]["text"])) if content else 0.0


def greet(fields):
    return ToolCall(name="echo_message", arguments={"message": "hello"})


def strange(prompt):
    return 0.0


def nothing(**told):
    return None
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openenv") / "guess.py"
    path.write_text(SOURCE)
    return path


class Server:
    """An OpenEnv server on the loopback, in a thread."""

    def __init__(self, file: Path, sessions: int = 8, names: Sequence[Any] = ("Guess", "Number", "Heard")) -> None:
        uvicorn = imported("uvicorn")
        from openenv.core.env_server import create_fastapi_app

        made = [part("environment", f"{file}:{name}").target if isinstance(name, str) else name for name in names]
        app = create_fastapi_app(*made, max_concurrent_envs=sessions)
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.inner = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.inner.run, kwargs={"sockets": [sock]}, daemon=True)
        self.thread.start()
        while not self.inner.started:
            time.sleep(0.02)

    def close(self) -> None:
        self.inner.should_exit = True
        self.thread.join(timeout=10)


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    made = Server(file)
    yield made
    made.close()


def run(waited: Any) -> Any:
    return asyncio.run(waited)


def play(env: OpenEnv, *answers: Any, seed: int = 0) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        results = [await env.reset(Task(env="openenv", seed=seed))]
        for answer in answers:
            results.append(await env.step({AGENT: Action(value=answer)}))
        return results

    return run(episode())


def test_the_contract_holds(file: Path, server: Server) -> None:  # rule 1
    for options in (
        {"env": f"{file}:Guess", "success_at": 0.0},
        {"env": f"{file}:Guess", "legal": "choices", "max_turns": 4},
        {"env": f"{file}:Board", "max_turns": 4, "format": "code"},
        {"url": server.url, "legal": "choices", "max_turns": 6},
    ):
        check_environment(OpenEnv(**options), make=lambda o=options: OpenEnv(**o), episodes=3)


def test_a_server_plays_the_same_episode(file: Path, server: Server) -> None:  # rule 2
    inside, behind = OpenEnv(env=f"{file}:Guess"), OpenEnv(url=server.url)
    for seed in range(3):
        own, other = (play(env, "3", "6", "1", "9", seed=seed) for env in (inside, behind))
        assert [(r.rewards, r.info.get("score")) for r in own] == [(r.rewards, r.info.get("score")) for r in other]
        assert [[s.text for s in r.observations.values()] for r in own][:4] == [
            [s.text for s in r.observations.values()] for r in other
        ][:4]
    two = OpenEnv(url=server.url)  # each object has its own session
    first = play(behind, "0", "0")[-1].observations[AGENT].text
    play(two, "0")
    assert "tries: 2" in first
    assert "tries: 3" in run(behind.step({AGENT: Action(value="0")})).observations[AGENT].text
    behind.close()
    two.close()


def test_single_fields_and_calls(file: Path) -> None:  # rule 3
    env = OpenEnv(env=f"{file}:Guess", show=("said",), options={"top": 4})
    seen = play(env)[0].observations[AGENT]
    assert seen.text == "guess below 4" and seen.instruction == "Answer with number: your guess"
    assert seen.legal == [str(number) for number in range(8)]
    assert play(env, 2)[1].observations[AGENT].text in ("higher", "lower")
    board = OpenEnv(env=f"{file}:Board", show=("said",), format="words")
    seen = play(board)[0].observations[AGENT]
    assert "act" in seen.instruction and "Move on the board." in seen.instruction
    results = play(board, "act 3 4", "act 1 2 jump")
    assert results[1].observations[AGENT].text == "walk to 3 4" and results[2].terminated == {AGENT}
    jumps = OpenEnv(env=f"{file}:Board", show=("said",), field="x")
    assert play(jumps, "5")[1].observations[AGENT].text == "walk to 5 0"


def test_rewards_and_ends(file: Path) -> None:  # rule 4
    env = OpenEnv(env=f"{file}:Guess", legal="choices", success_at=0.8, max_turns=3)
    secret = next(n for n in range(8) if play(env, n)[1].terminated)
    won = play(env, (secret + 1) % 8, secret)
    assert won[0].observations[AGENT].legal == [str(number) for number in range(8)]
    assert [dict(r.rewards) for r in won[1:]] == [{AGENT: -0.1}, {AGENT: 1.0}]
    assert won[-1].info == {"score": 0.9, "success": True} and won[-1].terminated == {AGENT}
    late = play(env, *[(secret + 1) % 8] * 3)[-1]
    assert late.truncated == {AGENT} == set(late.last) and late.info["success"] is False


def test_what_cannot_be_read(file: Path, server: Server) -> None:  # rule 5
    for options in ({"env": f"{file}:Guess"}, {"url": server.url}):
        env = OpenEnv(**options)
        for answer in ("many", "", "77"):
            result = play(env, answer, 0)
            assert result[1].info["invalid"] == {AGENT: True} and result[1].observations[AGENT].text.startswith(
                "error: "
            )
            assert (
                "tries: 1" in (result[2].observations.get(AGENT) or result[1].observations[AGENT]).text
                or result[2].terminated
            )
        wrong = next(n for n in range(8) if not play(env, n)[1].terminated)
        again = play(env, wrong, "many")[2].observations[AGENT].text
        assert again.startswith("error: ") and "tries: 1" in again  # the last observation is shown again
        env.close()
    board = OpenEnv(env=f"{file}:Board")
    said = [
        play(board, answer)[1].observations[AGENT].text.splitlines()[0]
        for answer in ("hello", '{"name": "act", "arguments": {"y": 1}}', '{"name": "go", "arguments": {}}')
    ]
    assert said[0] == "error: write exactly one call of `act`" and "the argument `x` is missing" in said[1]
    assert "there is no tool `go`" in said[2]


def test_a_lost_server_fails_the_episode(file: Path) -> None:  # rule 6
    own = Server(file, sessions=1)
    env = OpenEnv(url=own.url, timeout_s=5.0)
    play(env, "0")
    crowded = OpenEnv(url=own.url, timeout_s=5.0)
    with pytest.raises(EpisodeFailure) as full:
        play(crowded)
    assert full.value.boundary == "environment" and "as many sessions" in full.value.remedy
    own.close()
    with pytest.raises(EpisodeFailure) as lost:
        play(env, "0")
    assert "the server failed" in lost.value.what
    env.close()


def test_bad_options_are_refused(file: Path) -> None:  # rule 7
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({}, RecipeError, "neither"),
        ({"env": f"{file}:Guess", "url": "http://127.0.0.1:1"}, RecipeError, "both"),
        ({"env": f"{file}:Gone"}, UnknownName, "cannot be loaded"),
        ({"env": f"{file}:Stranger"}, ContractError, "a Stranger"),
        ({"env": f"{file}:Vague"}, ContractError, "the type of its actions"),
        ({"env": f"{file}:Board", "field": "z"}, RecipeError, "no field `z`"),
        ({"env": f"{file}:Board", "legal": "choices"}, RecipeError, "several fields"),
        ({"env": f"{file}:Board", "options": {"size": 3}}, RecipeError, "`size`"),
    ]
    for options, kind, message in bad:
        with told(kind, message):
            OpenEnv(**options)
    for wrong in ({"show": ("sayd",)}, {"show": ("said",), "legal": "choises"}):
        unknown = OpenEnv(env=f"{file}:Guess", **wrong)
        with told(RecipeError, "no field"):
            play(unknown, 9, 0)
    with pytest.raises(InvalidData, match="does not answer"):  # the message ends with the system's own words
        OpenEnv(url="http://127.0.0.1:1")


# ---- environments of the Model Context Protocol -------------------------------------------------------------
@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openenv") / "echo.py"
    path.write_text(ECHO)
    return path


@pytest.fixture(scope="module")
def echo_server(echo: Path) -> Iterator[Server]:
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    made = Server(echo, names=("Echo", CallToolAction, CallToolObservation))
    yield made
    made.close()


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_tools_are_listed_and_called(echo: Path, echo_server: Server) -> None:  # rule 8
    for options in ({"env": f"{echo}:Echo"}, {"url": echo_server.url}):
        env = OpenEnv(**options, max_turns=9)
        results = play(
            env,
            call("echo_message", message="hello"),
            call("echo_with_length", message="you") + call("echo_message", message="!"),
            call("fail"),
            call("echo_message"),
            "no call {",
            call("draw"),
            call("finish", word="end"),
        )
        first = results[0].observations[AGENT]
        assert first.text == "status: ready\nmessage: Echo environment ready!"
        assert "echo_message(message: string): Echo the message." in first.instruction
        assert {one["function"]["name"] for one in first.tools} >= {"echo_message", "echo_with_length", "fail"}
        texts = [result.observations[AGENT].text for result in results[1:5]]
        assert texts[0] == "hello" and texts[1].splitlines()[-1] == "!" and '"length":3' in texts[1].replace(" ", "")
        assert texts[2].startswith("error: ") and "broken" in texts[2]
        assert texts[3] == "error: the argument `message` is missing: a text"
        seen = results[6].observations[AGENT]
        assert seen.text is None and seen.image.shape == (2, 3, 3) and (seen.image[0, 0] == (255, 0, 0)).all()
        assert results[7].terminated == {AGENT} and results[7].rewards == {AGENT: 0.5}
        assert results[7].info["score"] == 0.5 and results[7].info["calls"] == 6
        env.close()


def test_each_native_call_has_its_result(echo: Path) -> None:  # rule 8
    env = OpenEnv(env=f"{echo}:Echo", max_turns=9)
    calls = (
        ToolCall(name="echo_message", arguments={"message": "a"}),
        ToolCall(name="draw"),
        ToolCall(name="echo_message"),
        ToolCall(name="finish", arguments={"word": "end"}),
        ToolCall(name="echo_message", arguments={"message": "late"}),
    )

    async def after(number: int) -> StepResult:
        await env.reset(env.tasks("train", 1, 0)[0])
        return await env.step({AGENT: Action(text="", tool_calls=calls[:number])})

    *results, pictures = asyncio.run(after(3)).observations[AGENT].messages
    assert [(one["role"], one["name"]) for one in results] == [("tool", call.name) for call in calls[:3]]
    assert results[0]["content"] == "a" and results[2]["content"].startswith("error: the argument `message`")
    assert pictures["role"] == "user" and (pictures["pictures"][0][0, 0] == (255, 0, 0)).all()
    assert asyncio.run(after(1)).observations[AGENT].text == "a"
    last = asyncio.run(after(5))  # the fourth call ends the episode
    assert last.terminated == {AGENT} and last.info["calls"] == 3  # one could not be read, and the last was not made
    env.close()


def test_an_answer_without_a_call_ends(echo: Path) -> None:  # rule 8
    env = OpenEnv(env=f"{echo}:Echo", reward=f"{echo}:longer")
    over = play(env, call("echo_message", message="four"), "That was all.")
    assert over[1].rewards == {AGENT: 4.0} and over[2].terminated == {AGENT} and "invalid" not in over[2].info
    assert play(env, "Nothing.")[-1].info["invalid"] == {AGENT: True}
    env.close()
    assert play(env, call("echo_message", message="again"))[1].observations[AGENT].text == "again"


def test_the_contract_holds_for_tools(echo: Path, echo_server: Server) -> None:  # rules 1, 8
    for options in ({"env": f"{echo}:Echo"}, {"url": echo_server.url, "format": "words"}):
        chosen = options | {"max_turns": 3}
        check_environment(OpenEnv(**chosen), make=lambda o=chosen: OpenEnv(**o), episodes=2)


def test_the_expert_is_ones_own(echo: Path, file: Path) -> None:  # rule 9
    env = OpenEnv(env=f"{echo}:Echo", expert=f"{echo}:greet", format="words")
    play(env)
    assert env.expert(AGENT).text == "echo_message hello"
    assert has(env, "expert") and not has(OpenEnv(env=f"{file}:Guess"), "expert")


def test_bad_options_of_tools_are_refused(echo: Path) -> None:  # rules 7, 8
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({"env": f"{echo}:Echo", "field": "tool_name"}, RecipeError, "calls of tools"),
        ({"env": f"{echo}:Echo", "reward": f"{echo}:strange"}, ContractError, "asks for `prompt`"),
    ]
    for options, kind, message in bad:
        with told(kind, message):
            OpenEnv(**options)
    with told(ContractError, "lists no tools"):
        play(OpenEnv(env=f"{echo}:Empty"))
    with told(EpisodeFailure, "no number"):
        play(OpenEnv(env=f"{echo}:Echo", reward=f"{echo}:nothing"), call("echo_message", message="x"))


def test_the_predecessor_is_named(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:  # rule 7
    versions = {"openenv-core": "0.2.1"}
    monkeypatch.setattr("palaestra.envs.adapters.openenv.links.installed", versions.get)
    with told(MissingExtra, "which `openenv` replaced"):
        OpenEnv(env=f"{file}:Guess")


def test_metadata(file: Path, server: Server) -> None:  # rule 10
    for success_at, success in ((None, False), (-1.0, True)):
        env = OpenEnv(env=f"{file}:Telling", max_turns=1, success_at=success_at)
        secret = next(n for n in range(8) if play(env, n)[1].terminated)
        wrong, right = play(env, (secret + 1) % 8)[1], play(env, secret)[1]
        assert wrong.info == {"hint": "think", "score": -0.1, "success": success}
        assert right.info == {"hint": "think", "score": 1.0, "success": True}
        assert wrong.last[AGENT].text.startswith("said: ") and "think" not in wrong.last[AGENT].text
