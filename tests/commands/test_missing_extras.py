"""A package that is not installed: (1) every command names the one line that installs it and leaves with 1, before
anything starts where the recipe says enough; (2) so it is where an episode finds out, in the run's own process, in
threads and in worker processes, whatever plays; (3) parts that always need packages name them, with the extra that has
them; (4) a tool that lacks its package is no tool that failed, and an environment no broken one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from palaestra.catalogue import heads
from palaestra.data import Task, ToolCall
from palaestra.errors import MissingExtra, missing_extra
from palaestra.registry import part
from palaestra.testing import EchoEnvironment, check_environment
from palaestra.tools import Toolbox, tool
from palaestra.tools.mcp import McpServer, Session
from tests.commands.conftest import SMALL, TINY, Command

INSTALL = "Install it with: pip install 'palaestra[tools]'"
OWN = """
from palaestra.errors import missing_extra
from palaestra.testing import EchoEnvironment


class World(EchoEnvironment):
    def step(self, actions):
        raise missing_extra("bm25s", extra="tools", needed_for="search")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with recipes that need what is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    (tmp_path / "own.py").write_text(OWN)
    words = SMALL | {"environment": "searchqa", "policies": {"main": {"policy": TINY}}}
    (tmp_path / "search.yaml").write_text(json.dumps(words))
    (tmp_path / "own.yaml").write_text(json.dumps(SMALL | {"environment": "own.py:World"}))
    (tmp_path / "method.yaml").write_text("advantage: rloo\n")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "play searchqa --policy random",
        "envs --check searchqa",
        "train search.yaml",
        "train search.yaml --dry-run",
        "explain search.yaml",
        "eval search.yaml --policy expert",
        "compare search.yaml method.yaml --seeds 1",
    ],
)
def test_1_commands(here: Path, palaestra: Command, command: str) -> None:
    done = palaestra(*command.split())
    assert done.code == 1
    assert done.err.count(INSTALL) == 1 and "the package `bm25s` is not installed" in done.err
    assert "check_environment" not in done.err and "Traceback" not in done.err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "command",
    [
        "train own.yaml",
        "train own.yaml rollout.workers=2",
        "train own.yaml rollout.workers=1 rollout.worker_kind=process",
        "train own.yaml rollout.runner=vector",
        "train own.yaml rollout.runner=windows rollout.window=2",
        "train own.yaml training.max_staleness=1",
        "eval own.yaml",
        "play own.py:World --policy random",
        "envs --check own.py:World",
    ],
)
def test_2_found_in_an_episode(here: Path, palaestra: Command, command: str) -> None:
    done = palaestra(*command.split())
    assert done.code == 1
    assert done.err.split() == f"search the package `bm25s` is not installed. {INSTALL}".split()


@pytest.mark.slow
def test_2_in_a_comparison(here: Path, palaestra: Command) -> None:
    done = palaestra("compare", "own.yaml", "method.yaml", "--seeds", 1)
    assert done.code != 0 and INSTALL in done.err


DECLARED = [(each.slot, each.name) for each in heads() if each.extra]


@pytest.mark.parametrize(("slot", "name"), DECLARED, ids=[name for _, name in DECLARED])
def test_3_parts_name_their_packages(slot: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = part(slot, name)
    assert found.modules or found.name == "tool_tasks"  # which needs what its tools do
    for module in found.modules:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtra, match=rf"(?s)`{module}` is not installed.*palaestra\[{found.extra}\]'"):
                found.check_installed(where="x")


def test_4_tools() -> None:
    def search(query: str) -> str:
        """Search."""
        raise missing_extra("bm25s", extra="tools", needed_for="search")

    box, call = Toolbox((tool(search),), format="json"), ToolCall(name="search", arguments={"query": "x"})
    with pytest.raises(MissingExtra):
        box.call(call)
    with pytest.raises(MissingExtra):
        asyncio.run(box.gather([call]))


def test_4_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mcp", "mcp.client"):
        monkeypatch.setitem(sys.modules, module, None)

    async def open_it() -> None:
        Session(McpServer(command=("python", "-c", "pass")))

    with pytest.raises(MissingExtra, match="tool mcp"):
        asyncio.run(open_it())


def test_4_the_check_of_environments() -> None:
    class Lacking(EchoEnvironment):
        def reset(self, task: Task) -> Any:
            raise missing_extra("bm25s", extra="tools", needed_for="search")

    with pytest.raises(MissingExtra):
        check_environment(Lacking())
