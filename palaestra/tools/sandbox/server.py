"""One warm Python of a pool, seen from outside: start it, let it fork, end what it forked, replace it.

Knows sockets and descriptors. Knows nothing of code, tools or episodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import bpf
from palaestra.tools.sandbox.cgroups import Group
from palaestra.tools.sandbox.handshake import Handshake
from palaestra.tools.sandbox.limits import MEGABYTE, Bounds
from palaestra.tools.sandbox.namespaces import INSIDE, SERVER, Means, own_uid
from palaestra.tools.sandbox.processes import clean_environment, filled, kill_group

SOURCE = Path(__file__).with_name("inside.py")
PATIENCE_S = 30.0  # for the server to start; 10 for it to end one process


@dataclass(slots=True)
class Server:
    """A process that forks on request. `way` is "none" without isolation."""

    way: Literal["root", "user", "none"]
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]
    shake: Handshake | None = None
    group: Group | None = None
    load: int = 0  # calls and sessions that it serves now
    count: int = 0
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, job: Mapping[str, Any], fds: tuple[int, ...], *, session: bool) -> tuple[int, int]:
        """A new process for a job. Returns its number and a descriptor that tells its end.

        Args:
            fds: standard input, output and error, and the link of a session. They stay the caller's.

        Raises: OSError, if the server is dead.
        """
        end_fd, tell_fd = os.pipe()
        job_fd = filled(pickle.dumps(dict(job)))
        try:
            with self.lock:
                self.count += 1
                request = {"number": self.count, "session": session, "uid": INSIDE if self.way != "root" else own_uid()}
                given = [tell_fd, *fds[:3], job_fd, *fds[3:]]
                socket.send_fds(self.control, [json.dumps(request).encode()], given)
            return request["number"], end_fd
        except OSError:
            self.dead = True
            os.close(end_fd)
            raise
        finally:
            os.close(tell_fd)
            os.close(job_fd)

    def kill(self, number: int) -> None:
        """End a process that it forked, with all that this one has started."""
        try:
            with self.lock:
                self.control.sendall(json.dumps({"kill": number}).encode())
        except OSError:
            self.dead = True

    def status(self, end_fd: int, *, wait_s: float = 10.0) -> int | None:
        """How a process has ended; None if the server died or does not answer, and then it is dead to us."""
        told = os.read(end_fd, 256) if select.select([end_fd], [], [], wait_s)[0] else b""
        os.close(end_fd)
        if not told:
            self.dead = True
            return None
        return int(json.loads(told)["status"])

    def destroy(self) -> None:
        """End it and all that it forked."""
        self.dead = True
        self.control.close()
        if self.way == "none":  # it ends its children itself when the socket closes; bubblewrap's all die with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
        kill_group(self.process)
        self.process.wait()
        if self.shake:
            self.shake.wait_for_end()
            self.shake.__exit__()
        if self.group:
            self.group.remove()
        self.log.close()


def start_isolated(means: Means, bounds: Bounds, settings: Mapping[str, Any], *, total_mb: int, most: int) -> Server:
    """A server inside bubblewrap, in a control group where there are some.

    Args:
        total_mb: memory of all that it forks together.
        most: how many processes it may fork at once.

    Raises: PalaestraError, if it does not start.
    """
    way: Literal["root", "user"] = "root" if means.way == "root" else "user"
    group = means.group(processes=min(bounds.processes * most + 64, 30000), memory=total_mb * MEGABYTE)
    shake = Handshake(wait=group is not None)
    shake.__enter__()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115  the server owns it
    words = means.view(bounds, shake.lend, serves=SOURCE.read_text(encoding="utf-8")) + shake.arguments
    filter_ = bpf.refusing() if bpf.known() else b""
    arguments = str(filled(pickle.dumps({**settings, "way": way, "filter": filter_})))
    shake.lent += [theirs.fileno(), int(arguments)]
    try:
        process = subprocess.Popen(
            [
                *(means.bwrap, "--args", shake.lend("\0".join(words).encode()), "--"),
                *(means.python, "-X", "utf8", SERVER, arguments, str(theirs.fileno())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={},
            start_new_session=True,
            pass_fds=shake.lent,
            **means.identity(own_uid()),
        )
        theirs.detach()  # closed with the others that were lent
        shake.close_lent()
        shake.release(group)
        return _ready(Server(way, process, ours, log, shake, group))
    except BaseException:
        shake.__exit__()
        if group:
            group.remove()
        raise


def start_plain(settings: Mapping[str, Any]) -> Server:
    """A server without isolation.

    Raises: PalaestraError, if it does not start.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115  the server owns it
    arguments = filled(pickle.dumps({**settings, "way": "none", "filter": b""}))
    try:
        process = subprocess.Popen(
            [sys.executable, "-X", "utf8", str(SOURCE), str(arguments), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=clean_environment({}, home=tempfile.gettempdir()),
            start_new_session=True,
            pass_fds=(theirs.fileno(), arguments),
        )
    finally:
        os.close(arguments)
        theirs.close()
    return _ready(Server("none", process, ours, log))


def _ready(server: Server) -> Server:
    server.control.settimeout(PATIENCE_S)
    try:
        said = server.control.recv(16)
    except OSError:
        said = b""
    if said == b"ready":
        server.control.settimeout(PATIENCE_S)
        return server
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.log.seek(0)
    told = server.log.read(2000).decode(errors="replace").strip()
    server.control.close()
    raise PalaestraError(
        where="sandbox: warm Python",
        what=f"the server did not start: {told or 'no reason given'}",
        remedy="Run `palaestra doctor`; a module in `preload` must be one that the sandbox's Python can import.",
    )
