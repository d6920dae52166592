"""What must hold of MCP servers, with real ones as processes and over HTTP:

1. A server's tools become tools with names, schemas and texts; its answers and errors are results; arguments are
   checked first.
2. A server that dies, hangs, prints garbage or answers at length gives results with the right fault; it stays dead for
   its users, and the next connection starts another.
3. The error for a server that cannot be started, is silent or ends at once quotes its last line.
4. A session belongs to one connection, or is shared in an event loop; it opens with the first call.
5. No process stays behind: after close, after an error, after an event loop that ended without closing.
6. Wrong settings are refused, and so is a tool whose schema cannot be used, unless `only` leaves it out.
7. A tool keeps its name where chat services allow it, hyphens too. Two tools that would get one name are refused,
   unless `only` leaves one out.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.data import ToolCall
from palaestra.errors import ContractError, RecipeError
from palaestra.tools import Toolbox
from palaestra.tools.mcp import OFFERS, Connection, McpServer, Offer, Unreachable
from palaestra.tools.tool import usable_name
from tests.messages import told

FILE = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = (sys.executable, FILE)


def children() -> set[int]:
    """Processes that this one started and that still run the server."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, line = (entry / "stat").read_text(), (entry / "cmdline").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[1] == str(os.getpid()) and "mcp_server" in line:
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:  # rule 5
    before = children()
    yield
    until = time.monotonic() + 5
    while children() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not children() - before


async def ask(connection: Connection, *calls: tuple[str, dict]) -> list:
    box = Toolbox(await connection.tools(), max_chars=100)
    return await box.gather([ToolCall(name=name, arguments=arguments) for name, arguments in calls])


def test_tools_answers_and_errors():  # rules 1 and 4
    async def play():
        connection = Connection(McpServer(start_s=90, command=COMMAND, cost=0.5))
        tools = {one.name: one for one in await connection.tools()}
        assert {"add", "note-down", "err"} <= set(tools)
        assert tools["add"].signature() == "add(a: integer, b: integer = 1)"
        assert tools["add"].description == "Add two numbers." and tools["add"].cost == 0.5
        found = await ask(
            connection,
            ("add", {"a": 3}),
            ("add", {"a": "x"}),
            ("note-down", {"text": "é"}),
            ("err", {"text": "boo"}),
            ("table", {"rows": 2}),
            ("garbage", {}),
        )
        assert [r.fault for r in found] == [None, "arguments", None, "raised", None, None]
        assert found[0].text == "4" and found[1].text == "error: `a` must be an integer, found 'x'"
        assert found[2].text == "1 noted" and "boo" in found[3].text and '"rows"' in found[4].text
        large = (await ask(connection, ("large", {"size": 3_000_000})))[0]
        assert large.text == "x" * 100 + "… 2,999,900 more characters"
        await connection.close()
        await connection.close()
        other = Connection(
            McpServer(start_s=90, command=COMMAND, only=("note-down",))
        )  # the list is known: nothing starts yet
        assert [one.name for one in await other.tools()] == ["note-down"] and not children()
        assert (await ask(other, ("note-down", {"text": "a"})))[0].text == "1 noted"  # of a server of its own
        await other.close()
        with pytest.raises(RecipeError, match=r"no tool `ad`(.|\n)*add"):
            await Connection(McpServer(start_s=90, command=COMMAND, only=("ad",))).tools()

    asyncio.run(play())


def test_deaths_and_silences():  # rule 2
    async def play():
        server = McpServer(start_s=90, command=COMMAND, timeout_s=0.7)
        connection = Connection(server)
        (late,) = await ask(connection, ("hang", {}))
        assert (late.fault, late.text) == ("timeout", "error: the server gave no answer within 0.7 s")
        assert (await ask(connection, ("add", {"a": 1})))[0].text == "2"  # one tool hung, not the server
        dead, beside = await ask(connection, ("die", {}), ("hang", {}))
        assert (dead.fault, dead.text) == ("died", "error: the server has ended: out of ink")
        assert beside.fault == "died"
        again = (await ask(connection, ("add", {"a": 1})))[0]
        assert (again.fault, again.text) == ("died", "error: the server has ended: out of ink")
        await connection.close()
        fresh = Connection(server)
        assert (await ask(fresh, ("add", {"a": 1})))[0].text == "2"
        assert (await ask(fresh, ("block", {})))[0].fault == "timeout"
        await fresh.close()  # it has to be killed

    asyncio.run(play())


@pytest.mark.parametrize(
    ("command", "start_s", "why"),
    [
        (("no-such-program",), 90, "FileNotFoundError"),
        ((sys.executable, "-c", "raise ValueError('no ink')"), 90, "ValueError: no ink"),
        ((sys.executable, "-c", "print('mcp_server garbage')"), 90, "cannot be used"),
        ((sys.executable, "-c", "import time; time.sleep(60) # mcp_server"), 1, "not ready within 1 s"),
    ],
)
def test_servers_that_do_not_start(command, start_s, why):  # rule 3
    async def play():
        connection = Connection(McpServer(command=command, start_s=start_s))
        with pytest.raises(Unreachable, match=why):
            await connection.tools()
        await connection.close()

    asyncio.run(play())


def test_a_server_that_does_not_start_again():  # rule 2
    async def play():
        server = McpServer(command=(sys.executable, "-c", "raise ValueError('no ink')"))
        OFFERS[server.key] = [Offer("add", "add", "", {"type": "object"})]
        connection = Connection(server)
        found = await ask(connection, ("add", {"a": 1}), ("add", {"a": 2}))
        assert [r.fault for r in found] == ["died", "died"] and "no ink" in found[0].text
        await connection.close()

    asyncio.run(play())


def test_shared_sessions():  # rules 4 and 5
    server = McpServer(start_s=90, command=COMMAND, shared=True)

    async def play():
        connections = [Connection(server) for _ in range(20)]
        found = await asyncio.gather(*[ask(one, ("note-down", {"text": "a"})) for one in connections])
        assert sorted(int(r[0].text.split()[0]) for r in found) == list(range(1, 21))
        assert len(children()) == 1
        assert (await ask(connections[0], ("die", {})))[0].fault == "died"
        assert (await ask(connections[1], ("add", {"a": 1})))[0].fault == "died"  # who used it then
        later = Connection(server)
        assert (await ask(later, ("note-down", {"text": "a"})))[0].text == "1 noted"
        for one in [*connections, later]:
            await one.close()
        assert len(children()) == 1  # kept for others, until the loop ends

    asyncio.run(play())


def test_a_loop_that_ends_without_closing():  # rule 5
    connection = Connection(McpServer(start_s=90, command=COMMAND))
    assert asyncio.run(ask(connection, ("add", {"a": 1})))[0].text == "2"
    assert asyncio.run(ask(connection, ("add", {"a": 1})))[0].text == "2"  # a new session in the new loop
    asyncio.run(connection.close())


@pytest.mark.slow
def test_file_descriptors_are_given_back():  # rule 5
    async def play():
        connection = Connection(McpServer(start_s=90, command=COMMAND))
        await ask(connection, ("add", {"a": 1}))
        await connection.close()

    asyncio.run(play())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(play())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_over_http():  # rules 1, 2 and 3
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"

    async def unreachable():
        connection = Connection(McpServer(url=url, start_s=3))
        with pytest.raises(Unreachable, match="MCP server http"):
            await connection.tools()
        await connection.close()

    async def play():
        connection = Connection(McpServer(url=url, timeout_s=2, headers={"authorization": "Bearer x"}))
        assert [r.text for r in await ask(connection, ("add", {"a": 3}), ("add", {"a": 4}))] == ["4", "5"]
        assert (await ask(connection, ("hang", {})))[0].fault == "timeout"
        dead = (await ask(connection, ("die", {})))[0]
        assert dead.fault in ("died", "timeout")
        again = (await ask(connection, ("add", {"a": 3})))[0]
        assert again.fault in ("died", "timeout")
        await connection.close()

    asyncio.run(unreachable())
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio.run(play())
    finally:
        process.kill()
        process.wait()


def test_settings_are_checked():  # rule 6
    for wrong in ({}, {"command": ("a",), "url": "http://b"}):
        with pytest.raises(RecipeError, match="either a command or a url"):
            McpServer(**wrong)
    with pytest.raises(RecipeError, match="above 0"):
        McpServer(command=("a",), timeout_s=0)


def test_a_tool_with_an_unusable_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 6
    server = McpServer(command=("lab",))
    far = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    offers = [Offer("add", "add", "", {"type": "object"}), Offer("spy", "spy", "", far)]
    monkeypatch.setitem(OFFERS, server.key, offers)
    with pytest.raises(
        RecipeError, match=r"MCP server lab(.|\n)*`spy` cannot be offered: .*outside of itself(.|\n)*`only`"
    ):
        asyncio.run(Connection(server).tools())
    some = McpServer(command=("lab",), only=("add",))
    monkeypatch.setitem(OFFERS, some.key, offers)
    assert [one.name for one in asyncio.run(Connection(some).tools())] == ["add"]


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 7
    kept = ("get-weather", "get_weather", "GetWeather2", "_x-1", "a" * 64)
    assert [usable_name(name) for name in kept] == list(kept)
    assert usable_name("files.read") == usable_name("files/read") == "files_read" and len(usable_name("b" * 128)) == 64

    async def tools(*called: str, only: tuple[str, ...] | None = None) -> list[str]:
        server = McpServer(command=("lab",), only=only)
        offers = [Offer(usable_name(name), name, "", {"type": "object"}) for name in called]
        monkeypatch.setitem(OFFERS, server.key, offers)
        return [one.name for one in await Connection(server).tools()]

    assert asyncio.run(tools("get-weather", "get_weather")) == ["get-weather", "get_weather"]
    with told(ContractError, "`files.read` and `files_read`"):
        asyncio.run(tools("files.read", "files_read"))
    assert asyncio.run(tools("files.read", "files_read", only=("files.read",))) == ["files_read"]
