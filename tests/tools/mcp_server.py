"""A real MCP server for tests, which can die, hang, fail, print garbage and keep a state.

`python mcp_server.py` uses standard input and output, `python mcp_server.py 8123` listens on that port.
"""

from __future__ import annotations

import os
import sys
import time

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("lab", log_level="CRITICAL")
seen: list[str] = []


@server.tool(structured_output=False)
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(name="note-down", structured_output=False)
def note_down(text: str) -> str:
    """Note a text and tell how many there are."""
    seen.append(text)
    return f"{len(seen)} noted"


@server.tool()
def table(rows: int) -> dict[str, list[int]]:
    """Show rows."""
    return {"rows": list(range(rows))}


@server.tool()
def err(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool()
async def hang() -> str:
    """Never answer."""
    await anyio.sleep(3600)
    return ""


@server.tool()
def block() -> str:
    """Never answer, nor anything else."""
    time.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """End the process."""
    print("out of ink", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool(structured_output=False)
def garbage() -> str:
    """Print what is no message, then answer."""
    os.write(1, b"\xff\xfe no message\n{}\n[[[[\n")
    return "done"


@server.tool(structured_output=False)
def large(size: int) -> str:
    """Answer with many characters."""
    return "x" * size


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
