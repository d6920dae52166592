"""`benchmarks/zero_shot.py`.

1. Shares of acts, turns and tokens are counted over all episodes; a share that no world reports is None.
2. Every preset of a world is one of its names, and a run writes the numbers with the commit.
3. A model behind an endpoint plays a preset: it gets the world's instruction and its own earlier replies.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from palaestra.chat import Window
from palaestra.data import Observation, RunSetup
from palaestra.data.protocols import Sampling
from palaestra.envs.worlds.household.world import Household
from palaestra.errors import EpisodeFailure, RecipeError
from palaestra.evaluation.scripted import play_scripted
from palaestra.policies.endpoint import EndpointPolicy
from palaestra.rollout.settings import RolloutSettings
from tests.chat_server import ChatServer
from tests.extras import skip_without
from tests.messages import told

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def zero_shot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("zero_shot")


def test_acts_are_counted(zero_shot: ModuleType) -> None:  # rule 1
    world = Household()
    played = play_scripted("household", {}, "expert", world.tasks("eval", 3, 0), settings=RolloutSettings(max_turns=60))
    found = zero_shot.of_acts(played)
    assert found["readable"] == found["executable"] == 1 and found["tokens"] == 0
    assert found["turns"] == round(sum(len(one.steps) for one in played) / 3, 2)
    assert zero_shot.of_acts([])["executable"] is None


def test_the_table_has_a_row_for_each_world(zero_shot: ModuleType) -> None:
    row = {"success": None, "interval": None, "readable": 0.5, "executable": 0.25, "turns": 3.0, "tokens": 12.0}
    other = row | {"success": 0.5, "interval": [0.25, 0.75]}
    lines = zero_shot.table({"shop": row, "desk": other}).splitlines()
    assert lines[1].split() == ["shop", "-", "0.5", "0.25", "3", "12", "-"]
    assert lines[2].split() == ["desk", "0.5", "0.5", "0.25", "3", "12", "0.25", "to", "0.75"]
    assert "household" in zero_shot.names() and "searchqa" in zero_shot.names()


@pytest.mark.slow
def test_a_model_is_measured(zero_shot: ModuleType, smollm2: str, tmp_path: Path) -> None:  # rule 2
    out = tmp_path / "found.json"
    zero_shot.main(["reasoning_gym", "--tasks", "1", "--out", str(out), "--model", smollm2])
    (row,) = json.loads(out.read_text())["models"][Path(smollm2).name].values()
    assert row["episodes"] == 1 and row["turns"] == 1 and row["tokens"] > 0 and len(row["commit"]) == 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A model that always writes `look`."""
    skip_without("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "")  # restored afterwards
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with ChatServer("I see.\nlook") as made:
        yield made


def test_a_model_behind_an_endpoint_is_measured(zero_shot: ModuleType, server: ChatServer, tmp_path: Path) -> None:
    url, out = server.url, tmp_path / "found.json"
    few = ["environment.household.idle=true", "environment.household.max_turns=3", "agents.*.context=full_history"]
    for world, changes in (("household", [word for key in few for word in ("--set", key)]), ("reasoning_gym", [])):
        zero_shot.main([world, "--tasks", "2", "--endpoint", url, "--model", "m", "--out", str(out), *changes])
    found = json.loads(out.read_text())["models"]["m"]
    assert found["household"]["turns"] == 3 and found["household"]["tokens"] == 21
    assert found["household"]["readable"] == found["household"]["executable"] == 1
    assert found["household"]["success"] == 0 and found["reasoning_gym"]["episodes"] == 2
    longest = max(server.requests, key=lambda body: len(body["messages"]))
    assert [one["role"] for one in longest["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert "Commands:" in longest["messages"][0]["content"] and "last line" in longest["messages"][0]["content"]
    assert longest["messages"][2]["content"] == "I see.\nlook" and longest["max_tokens"] == 48
    single = [body for body in server.requests if len(body["messages"]) == 2]
    assert len(single) == 4, "the first turns of two worlds"


def test_an_endpoint_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with told(RecipeError, "OPENAI_BASE_URL is empty"):
        EndpointPolicy("main", RunSetup(), model="m")


def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    policy = EndpointPolicy("main", RunSetup(), model="m", retries=0)
    session = policy.session(context=None, sampling=Sampling(), key="a")
    with told(EpisodeFailure, "gave no reply"):
        asyncio.run(session.act(Observation(text="hi"), seed=1))
    with told(RecipeError, "cannot follow the context Window"):
        policy.session(context=Window(), sampling=Sampling(), key="a")
