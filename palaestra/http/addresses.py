"""Where a server listens, and the secret that its clients must know."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from palaestra.errors import PalaestraError

LOOPBACK = "127.0.0.1"
BACKLOG = 2048  # connections that wait until the server takes them


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach this host."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def secret_in(variable: str) -> str:
    """The secret in an environment variable; "" if there is none.

    Raises: PalaestraError, for a secret that no header of HTTP can carry.
    """
    secret = os.environ.get(variable, "")
    if any(not "!" <= letter <= "~" for letter in secret):
        raise PalaestraError(
            where=f"the environment variable {variable}",
            what="the secret has a space, a control character or a letter outside of ASCII. Clients cannot send it.",
            remedy='Make another one, such as: python -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    return secret


def bound(host: str, port: int, *, secret: str = "", variable: str = "", listens: bool = True) -> socket.socket:
    """A socket that is bound there. Programs that this process starts do not get it.

    Args:
        host: its address decides whether other machines reach the server, whatever the name says.
        port: 0 takes a free one.
        secret: that clients must know. variable: the environment variable that sets it, for the error.
        listens: False lets the server listen later. Until then, connections are refused.

    Raises: PalaestraError, if other machines reach the address and there is no secret, or if the address cannot be
        used.
    """
    made: socket.socket | None = None
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not secret and not is_loopback(str(place[0]).partition("%")[0]):
            raise _open_to_others(host, variable)
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds clients that vanished
        made.bind(place)
        if listens:
            made.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        told = error.strerror if isinstance(error, OSError) else None
        raise PalaestraError(
            where=f"--host {host} --port {port}",
            what=f"the server cannot listen there: {told or error}.",
            remedy="Choose another port; --port 0 takes a free one.",
        ) from error
    made.set_inheritable(False)
    return made


def _open_to_others(host: str, variable: str) -> PalaestraError:
    return PalaestraError(
        where=f"--host {host}",
        what="it opens the server to other machines, and the server has no secret.",
        remedy=f"Set one that clients send as their key: export {variable}=…\nOr use --host {LOOPBACK}.",
    )


def address_of(listening: socket.socket) -> str:
    """The address of a socket, as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
