"""The connection to one running session of a pool: requests and answers. No answer is trusted."""

from __future__ import annotations

import base64
import binascii
import json
import os
import pickle
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import NONE, Blame, Deaths, Group
from palaestra.tools.sandbox.limits import MEGABYTE, Job
from palaestra.tools.sandbox.python_pool import PythonPool
from palaestra.tools.sandbox.server import Server
from palaestra.tools.sandbox.watching import Ended, Watch, readable

GRACE_S = 2.0  # a session ends a piece in time itself; if it is this late, it counts as broken
LONGEST = 64 * MEGABYTE  # most bytes of an answer


@dataclass(slots=True)
class Living:
    """The processes of one session."""

    pool: PythonPool
    server: Server
    number: int
    end_fd: int
    link: socket.socket
    part: Group | None
    kept: ExitStack

    @classmethod
    def start(cls, pool: PythonPool, task: Job) -> Living:
        """Fork a session from a server of the pool.

        Raises: PalaestraError, if two servers in a row are dead.
        """
        for _ in range(2):
            with ExitStack() as made:
                home = made.enter_context(pool.home())
                server = pool.take()
                made.callback(pool.give, server)
                ours, theirs = socket.socketpair()
                null = os.open(os.devnull, os.O_RDWR)
                try:
                    fds = (null, null, null, theirs.fileno())
                    # A piece is a fork of the process that holds the variables, so both may need twice as much.
                    part = server.part(memory_mb=2 * task.memory_mb + pool.bounds.disk_mb)
                    if part:
                        made.callback(part.remove)
                    number, end_fd = server.fork(pool.request(task, home), fds, session=True, part=part)
                except OSError:
                    ours.close()
                    continue
                finally:
                    theirs.close()
                    os.close(null)
                made.callback(ours.close)
                return cls(pool, server, number, end_fd, ours, part, made.pop_all())
        raise PalaestraError(
            where="Session", what="two servers in a row died before the start.", remedy="Run `palaestra doctor`."
        )

    def ask(
        self, request: Mapping[str, Any], *, timeout_s: float, cancel_fd: int = -1
    ) -> tuple[Ended, Watch, dict[str, Any] | None, float]:
        """Run a piece of code in the session. The answer is None if the session died, was cancelled or is too late."""
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        unused_r, unused_w = os.pipe()  # Watch needs a descriptor to feed, but a piece has no standard input
        os.close(unused_r)
        watch = Watch(out_r, err_r, unused_w, b"", self.pool.bounds, cancel_fd, patient=True)
        reply: dict[str, Any] | None = None
        try:
            begun = time.monotonic()
            try:
                self.send(request, (out_w, err_w))
            except OSError:
                return "itself", watch, None, 0.0
            finally:
                os.close(out_w)
                os.close(err_w)
            ended = watch.until(self.link.fileno(), timeout_s=timeout_s + GRACE_S)
            if ended == "itself":
                reply = self.receive(GRACE_S)
            return ended, watch, reply, time.monotonic() - begun
        finally:
            watch.drain()
            watch.close()

    def send(self, request: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a request, with descriptors.

        Raises: OSError, if the session or its server is dead. A session may still answer after its server was killed,
            without isolation for ever. But then nothing can end it, so it counts as dead at once.
        """
        if self._orphaned():
            raise BrokenPipeError("the server has ended")
        content = pickle.dumps(dict(request))
        self.link.settimeout(GRACE_S)
        socket.send_fds(self.link, [struct.pack("=Q", len(content))], list(fds))
        self.link.sendall(content)

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """An answer of the session. None if there is none in time, or if it cannot be read."""
        until = time.monotonic() + wait_s
        head = self._exactly(8, until)
        size = struct.unpack("=Q", head)[0] if head else LONGEST + 1
        content = self._exactly(size, until) if size <= LONGEST else None
        try:
            reply = json.loads(content) if content else None
        except ValueError:
            return None
        return reply if isinstance(reply, dict) else None

    def end(self) -> int | None:
        """Kill the session and all that it started. Returns its exit status, or None if its server died."""
        orphaned = self._orphaned()  # asked first, because `status` may find an old answer of a dead server
        self.server.kill(self.number)
        status = self.server.status(self.end_fd)
        self.kept.close()
        return None if orphaned else status

    def mark(self) -> Deaths:
        """What lack of memory has done to the session so far."""
        return self.part.mark() if self.part else NONE

    def blame(self, since: Deaths) -> Blame:
        """Whose memory made the kernel kill a process of the session since the last mark."""
        return self.part.blame(since) if self.part else "nobody"

    def _orphaned(self) -> bool:
        return self.server.process.poll() is not None

    def _exactly(self, size: int, until: float) -> bytes | None:
        parts: list[bytes] = []
        while size > 0:
            left = until - time.monotonic()
            if left <= 0 or not readable(self.link.fileno(), left):
                return None
            try:
                part = self.link.recv(min(size, MEGABYTE))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def told_files(reply: Mapping[str, Any] | None, *, most: int) -> dict[str, bytes] | None:
    """The files in an answer. None if the answer is malformed, too large, or names a path outside the work folder."""
    told = reply.get("files") if reply else None
    if not isinstance(told, dict):
        return None
    found: dict[str, bytes] = {}
    for path, content in told.items():
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path or not isinstance(content, str):
            return None
        try:
            found[str(pure)] = base64.b64decode(content, validate=True)
        except binascii.Error:
            return None
    return found if sum(map(len, found.values())) <= most else None
