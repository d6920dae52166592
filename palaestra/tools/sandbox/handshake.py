"""The start of bubblewrap through its descriptors: what it reads, what it reports, and when it may go on."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Group
from palaestra.tools.sandbox.processes import filled
from palaestra.tools.sandbox.watching import readable


@dataclass(slots=True)
class Handshake:
    """The descriptors that one start of bubblewrap needs, and what bubblewrap reports through them.

    Args:
        wait: let bubblewrap wait until its first process is in a control group, before untrusted code runs.
    """

    wait: bool
    lent: list[int] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    status_fd: int = -1
    go_fd: int = -1
    init_fd: int = -1  # a descriptor of the first process in the namespace; all others die with it
    told: bytes = b""

    def __enter__(self) -> Handshake:
        self.status_fd, tell_fd = os.pipe()
        self.lent.append(tell_fd)
        self.arguments = ["--json-status-fd", str(tell_fd)]
        if self.wait:
            block_fd, self.go_fd = os.pipe()
            self.lent.append(block_fd)
            self.arguments += ["--block-fd", str(block_fd)]
        return self

    def __exit__(self, *_: object) -> None:
        self.close_lent()
        for fd in (self.status_fd, self.go_fd, self.init_fd):
            if fd >= 0:
                os.close(fd)

    def lend(self, content: bytes) -> str:
        """The number of a descriptor from which bubblewrap can read this content."""
        self.lent.append(filled(content))
        return str(self.lent[-1])

    def close_lent(self) -> None:
        """Close our copies of the descriptors, because bubblewrap has its own now or never started."""
        while self.lent:
            os.close(self.lent.pop())

    def release(self, group: Group | None) -> None:
        """Put the first process into its control group and let it go on."""
        while b"\n" not in self.told and self._read(timeout_s=10.0):
            pass
        if b"\n" not in self.told:
            return  # bubblewrap failed, and `status` will say why
        pid = int(json.loads(self.told.splitlines()[0])["child-pid"])
        with contextlib.suppress(ProcessLookupError):
            self.init_fd = os.pidfd_open(pid)
            if group:
                group.add(pid)
        if self.wait:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.go_fd, b"x")

    def wait_for_end(self) -> None:
        """Wait until the first process is dead, and all that was started inside with it."""
        if self.init_fd >= 0:
            readable(self.init_fd, 10.0)

    def status(self, status: int, err: str) -> int:
        """The exit status of the program: minus the number of the signal if a signal ended it.

        Raises: PalaestraError, if bubblewrap failed before the program started.
        """
        while self._read(timeout_s=0.0):
            pass
        codes = [line for line in map(json.loads, self.told.splitlines()) if "exit-code" in line]
        if not codes and status < 0:
            return status  # bubblewrap itself was killed, because the sandbox is being closed
        if not codes:
            raise PalaestraError(
                where="sandbox: bubblewrap",
                what=f"bubblewrap could not start the program (status {status}): {err.strip() or 'no reason given'}",
                remedy="Run `palaestra doctor`.",
            )
        code = int(codes[-1]["exit-code"])
        return 128 - code if 128 < code <= 192 else code

    def _read(self, *, timeout_s: float) -> bool:
        if not readable(self.status_fd, timeout_s):
            return False
        chunk = os.read(self.status_fd, 4096)
        self.told += chunk
        return bool(chunk)
