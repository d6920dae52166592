"""Start and control one warm Python of a pool: let it fork, end what it forked, and end it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
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
from palaestra.tools.sandbox.cgroups import Group
from palaestra.tools.sandbox.handshake import Handshake
from palaestra.tools.sandbox.limits import MEGABYTE, Bounds
from palaestra.tools.sandbox.namespaces import INSIDE, SERVER, Means, own_uid
from palaestra.tools.sandbox.processes import clean_environment, filled, kill_group
from palaestra.tools.sandbox.watching import readable

SOURCE = Path(__file__).with_name("inside.py")
PATIENCE_S = 30.0  # seconds that a server has to start


@dataclass(slots=True)
class Server:
    """A Python process that forks on request. `way` is "none" if it does not isolate."""

    way: Literal["root", "user", "none"]
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]
    shake: Handshake | None = None
    group: Group | None = None
    load: int = 0  # number of calls and sessions that it serves now
    count: int = 0
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(
        self, job: Mapping[str, Any], fds: tuple[int, ...], *, session: bool, part: Group | None = None
    ) -> tuple[int, int]:
        """Fork a process for a job. Returns its number, and a descriptor that becomes readable when it ends.

        Args:
            fds: standard input, output and error, and the link of a session. The caller closes them.
            part: the control group that the process moves into.

        Raises: OSError, if the server is dead.
        """
        end_fd, tell_fd = os.pipe()
        job_fd = filled(pickle.dumps(dict(job)))
        doors = [part.door()] if part else []
        try:
            with self.lock:
                self.count += 1
                request = {"number": self.count, "session": session, "uid": INSIDE if self.way != "root" else own_uid()}
                request["door"] = bool(doors)
                given = [tell_fd, *fds[:3], job_fd, *fds[3:], *doors]
                socket.send_fds(self.control, [json.dumps(request).encode()], given)
            return request["number"], end_fd
        except OSError:
            self.dead = True
            os.close(end_fd)
            raise
        finally:
            for fd in (tell_fd, job_fd, *doors):
                os.close(fd)

    def part(self, *, memory_mb: int) -> Group | None:
        """A control group for one call or session, inside the server's own. None without control groups.

        Raises: OSError, if the server's group is gone because the server was destroyed.
        """
        return self.group.part(memory=memory_mb * MEGABYTE) if self.group else None

    def kill(self, number: int) -> None:
        """End a forked process and all that it has started."""
        try:
            with self.lock:
                self.control.sendall(json.dumps({"kill": number}).encode())
        except OSError:
            self.dead = True

    def status(self, end_fd: int, *, wait_s: float = 10.0) -> int | None:
        """The exit status of a process. None if the server died or does not answer; it then counts as dead."""
        told = os.read(end_fd, 256) if readable(end_fd, wait_s) else b""
        os.close(end_fd)
        if not told:
            self.dead = True
            return None
        return int(json.loads(told)["status"])

    def destroy(self) -> None:
        """End the server and all that it forked."""
        self.dead = True
        self.control.close()
        if self.way == "none":  # it ends its children when the socket closes; inside bubblewrap all die with it
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
    """Start a server inside bubblewrap, in a control group where there are any.

    Args:
        total_mb: memory of all processes that it forks together.
        most: most calls and sessions at once.

    Raises: PalaestraError, if the server does not start.
    """
    way: Literal["root", "user"] = "root" if means.way == "root" else "user"
    group = means.group(processes=min(bounds.processes * most + 64, 30000), memory=total_mb * MEGABYTE, divided=True)
    shake = Handshake(wait=group is not None)
    shake.__enter__()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115  `destroy` closes it
    words = means.view(bounds, shake.lend, serves=SOURCE.read_text(encoding="utf-8")) + shake.arguments
    arguments = str(filled(pickle.dumps({**settings, "way": way, "filter": means.program})))
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
        theirs.detach()  # `close_lent` closes it with the other descriptors
        shake.close_lent()
        shake.release(group)
        return _ready(Server(way, process, ours, log, shake, group))
    except BaseException:
        shake.__exit__()
        if group:
            group.remove()
        raise


def start_plain(settings: Mapping[str, Any]) -> Server:
    """Start a server without isolation.

    Raises: PalaestraError, if the server does not start.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115  `destroy` closes it
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
        remedy="Run `palaestra doctor`. The sandbox's Python must be able to import each module in `preload`.",
    )
