"""Runs a server: for a command until a signal comes, or in a thread beside a run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from palaestra.errors import PalaestraError, missing_extra

TOKEN = "PALAESTRA_SERVE_TOKEN"  # the environment variable with the secret of a server
GRACE_S = 5  # seconds for replies in progress after the signal to end
KEEP_S = 75  # seconds that an idle connection stays open


def refuse_missing() -> None:
    """Raises: MissingExtra, if a package of the server is not installed."""
    for package in ("fastapi", "uvicorn"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise missing_extra(package, extra="serve", needed_for="the gateway") from error


def token_for(host: str) -> str:
    """The secret that clients must know; "" on loopback, if none is set.

    Raises: PalaestraError, for a host that other machines reach, without a secret.
    """
    token = os.environ.get(TOKEN, "")
    if not token and not is_loopback(host):
        raise PalaestraError(
            where=f"--host {host}",
            what="it opens the server to other machines, and the server has no secret.",
            remedy=f"Set one that clients send as their key: export {TOKEN}=…\nOr use --host 127.0.0.1.",
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach this host."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises: PalaestraError, if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        raise PalaestraError(
            where=f"--host {host} --port {port}",
            what=f"the server cannot listen there: {error.strerror or error}.",
            remedy="Choose another port; --port 0 takes a free one.",
        ) from error
    made.set_inheritable(False)
    return made


def address_of(listening: socket.socket) -> str:
    """The address of a socket, as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_server(app: Any) -> Any:
    """A server of this application, which leaves signals alone."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


def serve_until_signal(app: Any, listening: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM comes. Replies in progress have a few seconds to end.

    Args:
        ready: called when the server answers.
    """
    server = uvicorn_server(app)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end, server)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            ready()
        await serving

    asyncio.run(run())


def _end(server: Any) -> None:
    """The first signal lets replies end, and the second one cuts them."""
    server.force_exit = server.should_exit
    server.should_exit = True
