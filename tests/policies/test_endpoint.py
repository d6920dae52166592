"""What must hold of the policy `endpoint`: (1) in the recipe of its page it plays beside a policy that learns: it is
asked with its role's settings, its acts have no tokens, and it is not trained; (2) a context that counts token ids
ends the run before the endpoint is asked; (3) it reads the tools of its role in words, and all messages of an
observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from palaestra.chat import FullHistory, LatestOnly
from palaestra.data import Action, Observation, RunSetup
from palaestra.data.protocols import Sampling
from palaestra.errors import PalaestraError
from palaestra.policies.endpoint import EndpointPolicy
from palaestra.recipe import load
from palaestra.tools.calculator import calculator
from palaestra.training.start import train
from tests.chat_server import ChatServer
from tests.docs.pages import pages
from tests.extras import needs
from tests.messages import told

pytestmark = needs("openai")


@pytest.fixture
def recipe() -> dict[str, Any]:
    """`helped.yaml` of the page."""
    (page,) = (page for page in pages() if page.name == "docs/policies.md")
    (block,) = (block for block in page.blocks("yaml") if block.file == "helped.yaml")
    return yaml.safe_load(block.text)  # type: ignore[no-any-return]


def trained(recipe: dict[str, Any], folder: Path, *overrides: str) -> Path:
    found = load([recipe], [f"run={folder}", "training.iterations=1", "evaluation.tasks=2", *overrides])
    train(found.settings, recipe=found.to_json(), quiet=True)
    return folder


def test_1_beside_a_policy_that_learns(recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    with ChatServer("red") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        folder = trained(recipe, tmp_path / "run")
    asked = [body for body in server.requests if body["temperature"] == 0.7]
    assert len(asked) == 4 * 4 * 2, "each turn of each episode"
    assert all(body["max_tokens"] == 256 and body["model"] == "Qwen/Qwen3-4B" for body in asked)
    assert {len(body["messages"]) for body in asked} == {1, 3}, "its own reply stays in the conversation"
    assert set(server.keys) == {"Bearer a-secret"}
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files and not any(b"a-secret" in file.read_bytes() for file in files)
    assert not [file for file in files if file.name.startswith("partner.")], "it has no weights"


def test_2_refused(recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer("red") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with told(PalaestraError, "cannot follow the context Window"):
            trained(recipe, tmp_path / "run", "agents.right.context=window")
    assert not server.requests


@pytest.mark.parametrize("context", [FullHistory(), LatestOnly()], ids=["full", "latest"])
def test_3_tools_in_words_and_messages(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    policy = EndpointPolicy("main", RunSetup(), model="m", tools="words")
    session = policy.session(context=context, sampling=Sampling(), key="k")
    rules = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "2 + 3?"}]
    tools = (calculator().declaration(),)
    session.record(Observation(text="no", messages=rules, instruction="Add.", tools=tools), Action(text="a call"))
    system, asked, _ = session.messages
    assert system["content"].startswith("Add.\n\n# Tools") and system["content"].endswith("Be kind.")
    assert '"name": "calculator"' in system["content"] and asked == rules[1]
    result = [{"role": "tool", "content": "5"}]
    session.record(Observation(text="tool: 5", messages=result, instruction="Add."), Action(text="5"))
    assert session.messages[-2] == {"role": "user", "content": "tool: 5"}
    assert "calculator" in session.messages[0]["content"]
    session.record(Observation(messages=[{"role": "user", "content": "and 4?"}], instruction="Add."), Action(text="9"))
    assert session.messages[-2] == {"role": "user", "content": "and 4?"}
