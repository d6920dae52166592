"""Servers: (1) only `palaestra/http` opens a socket that listens or runs a server of a library; (2) every module
that lets it open one is a subject of the battery in tests/http; (3) both rules can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.source_text import PACKAGE, ROOT, package_files

CALLS = {
    "create_server", "start_server", "start_unix_server", "create_unix_server", "create_datagram_endpoint", "bind_tcp",
    "HTTPServer", "ThreadingHTTPServer", "TCPServer", "ThreadingTCPServer", "UDPServer", "UnixStreamServer",
    "WSGIServer", "make_server", "SimpleXMLRPCServer", "TCPSite", "UnixSite", "SockSite", "run_app", "Listener",
    "BaseManager", "TCPStore",
}  # fmt: skip
MODULES = ("uvicorn", "hypercorn", "http.server", "socketserver", "wsgiref", "aiohttp.web", "websockets.server")
OF_SOCKETS = {"bind", "listen"}
SUSPECT = re.compile("|".join([*CALLS, "socket", *(module.partition(".")[0] for module in MODULES)]))  # else not parsed
ALLOWED = PACKAGE / "http"


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def opened(text: str) -> Iterator[str]:
    """The lines of a module that open a server."""
    if not SUSPECT.search(text):
        return
    tree = ast.parse(text)
    uses_sockets = re.search(r"^\s*(import|from) socket\b", text, re.MULTILINE) is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = name_of(node)
            if name in CALLS or (uses_sockets and name in OF_SOCKETS and isinstance(node.func, ast.Attribute)):
                yield f"{node.lineno} calls {name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [f"{getattr(node, 'module', '') or ''}.{alias.name}".strip(".") for alias in node.names]
            for module in modules:
                if any(f"{module}.".startswith(f"{one}.") for one in MODULES):
                    yield f"{node.lineno} imports {module}"


def test_servers_are_opened_in_one_place() -> None:  # rule 1
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in package_files()
        if ALLOWED not in path.parents
        for line in opened(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_every_server_passes_the_battery() -> None:  # rule 2
    using = {
        path.relative_to(ROOT).as_posix()
        for path in package_files()
        if re.search(r"^from palaestra\.http\.addresses import .*\bbound\b", path.read_text("utf-8"), re.MULTILINE)
    }
    listed = (ROOT / "tests/http/subjects.py").read_text(encoding="utf-8").partition("SUBJECTS: ")[2]
    assert using == set(re.findall(r'^    "(palaestra/[^"]+)": \w+,$', listed, re.MULTILINE)) != set()


def test_servers_are_found() -> None:  # rule 3
    for bad in (
        "import socket\ns = socket.socket()\ns.bind(('', 0))\n",
        "import asyncio\nasyncio.start_server(f, '0.0.0.0', 1)\n",
        "def f():\n    import uvicorn\n",
        "from http.server import ThreadingHTTPServer as Server\n",
        "from aiohttp import web\n",
        "loop.create_server(f)\n",
    ):
        assert list(opened(bad)), bad
    assert not list(opened("from palaestra.registry.bound import bind\nbind(slot, part)\nmatch.listen()\n"))
