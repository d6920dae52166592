"""Control groups, which limit the number and the memory of all processes of one execution together.

A group is made only beside or below the group of this process, and only if that changes no other group. Both versions
of the kernel's interface are supported. A group that a killed process left is removed by the next process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from palaestra.tools.temporary import abandoned, locked

SELF = Path("/proc/self")
COUNT = itertools.count()
PREFIX = "palaestra-box-"
SLACK = 4 * 1024 * 1024  # bytes; memory is given in pieces, so a group may be full a little below its limit
SERVER = "server"  # version 2: a group that holds groups may hold no process, so the server has one of its own
Blame = Literal["nobody", "itself", "others"]


class Names(NamedTuple):
    """What one version of the interface calls its files."""

    processes: str
    memory: str
    more: tuple[tuple[str, int | None], ...]  # further limits, each with its value; None: the same as of memory
    kills: str  # a file with a line `oom_kill N`
    reached: str  # a file with a line `oom N`: how often the group's own limit was reached
    peak: str  # a file with the most memory so far, which writing 0 resets


NAMES = {
    1: Names(
        "pids.max",
        "memory.limit_in_bytes",
        # Older kernels count inner groups only when asked. Without the third, buffers of TCP are not limited at all.
        (
            ("memory.use_hierarchy", 1),
            ("memory.memsw.limit_in_bytes", None),
            ("memory.kmem.tcp.limit_in_bytes", 1 << 25),
        ),
        "memory.oom_control",
        "",  # `memory.failcnt` stays 0 under some kernels
        "memory.max_usage_in_bytes",
    ),
    2: Names(
        "pids.max",
        "memory.max",
        (("memory.swap.max", 0),),
        "memory.events",
        "memory.events.local",
        "",
    ),
}


class Deaths(NamedTuple):
    """What has happened in a group so far: processes killed for memory, and how often its own limit was reached."""

    kills: int = 0
    reached: int = 0


NONE = Deaths()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group. Version 1 has a folder for each controller, version 2 one folder for both."""

    folders: tuple[Path, ...]
    version: int
    server: str = ""  # the inner group that `add` puts processes into
    locks: list[int] = field(default_factory=list)

    def add(self, pid: int) -> None:
        """Move a process into the group. Processes that it starts from now on are in the group too."""
        for folder in self.folders:
            (folder / self.server / "cgroup.procs").write_text(str(pid))

    def part(self, *, memory: int) -> Group:
        """Make a group inside this one, with a limit of memory of its own.

        Raises: OSError, if the kernel refuses.
        """
        names, name = NAMES[self.version], f"part-{next(COUNT)}"
        within = [folder for folder in self.folders if (folder / names.memory).exists()]
        return _made(Group(folders=tuple(folder / name for folder in within), version=self.version), memory=memory)

    def door(self) -> int:
        """A descriptor. A process that writes `0` to it moves into the group, also from inside other namespaces."""
        return os.open(self.folders[-1] / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def mark(self) -> Deaths:
        """What has happened in the group so far. `blame` compares with it; only the last mark is good for that."""
        names = NAMES[self.version]
        for folder in self.folders:
            if names.peak and (folder / names.peak).exists():
                (folder / names.peak).write_text("0")
        return Deaths(self._number(names.kills, "oom_kill"), self._number(names.reached, "oom"))

    def blame(self, since: Deaths = NONE) -> Blame:
        """Whose memory made the kernel kill a process of this group.

        "itself": the group reached its own limit. "others": it did not, so a group around it or the machine ran out.

        Args:
            since: the last mark, or nothing if there was none.
        """
        names = NAMES[self.version]
        if self._number(names.kills, "oom_kill") <= since.kills:
            return "nobody"
        full = names.peak and self._number(names.peak) >= self._number(names.memory) - SLACK
        return "itself" if full or self._number(names.reached, "oom") > since.reached else "others"

    def remove(self, *, wait_s: float = 5.0) -> None:
        """Kill the processes that are still in the group, and remove the group and the groups inside."""
        until = time.monotonic() + wait_s
        for folder in self.folders:
            _remove(folder, until)
        while self.locks:
            os.close(self.locks.pop())

    def _number(self, file: str, name: str = "") -> int:
        for folder in self.folders if file else ():
            with contextlib.suppress(FileNotFoundError):
                text = (folder / file).read_text()
                if not name:
                    return int(text)
                return sum(int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The folders in which this process may make groups."""

    parents: tuple[Path, ...]
    version: int

    def make(self, *, processes: int, memory: int, divided: bool = False) -> Group:
        """Make a group with a limit of processes and a limit of memory in bytes.

        Args:
            divided: whether `part` will be called.

        Raises: OSError, if the kernel refuses.
        """
        name = f"{PREFIX}{os.getpid()}-{next(COUNT)}"
        folders = tuple(parent / name for parent in self.parents)
        inner = SERVER if divided and self.version == 2 else ""
        group = _made(Group(folders=folders, version=self.version, server=inner), memory=memory, processes=processes)
        try:
            group.locks.extend(locked(folder) for folder in group.folders)
            if inner:
                (folders[0] / "cgroup.subtree_control").write_text("+memory +pids")
                (folders[0] / inner).mkdir()
        except OSError:
            group.remove()
            raise
        return group


@functools.cache
def writable_groups() -> Groups | None:
    """Where groups that limit processes and memory can be made, found by making one. None if it is not possible."""
    try:
        candidates = list(_candidates())
    except (OSError, ValueError):
        return None
    for groups in candidates:
        try:
            group = groups.make(processes=8, memory=64 * 1024 * 1024)
        except OSError:
            continue
        names = NAMES[groups.version]
        limits = {name for folder in group.folders for name in names[:2] if (folder / name).exists()}
        movable = all(os.access(parent / "cgroup.procs", os.W_OK) for parent in groups.parents)
        group.remove()
        if len(limits) == 2 and movable:
            sweep(groups)
            return groups
    return None


def sweep(groups: Groups) -> None:
    """Remove the groups of processes that have ended, and kill what still runs in them."""
    for parent in groups.parents:
        for folder in parent.glob(f"{PREFIX}*"):
            with abandoned(folder) as free:
                if free:
                    _remove(folder, time.monotonic() + 1.0)


def _made(group: Group, *, memory: int, processes: int | None = None) -> Group:
    names = NAMES[group.version]
    limits = [(names.processes, processes), (names.memory, memory)]
    limits += [(file, memory if value is None else value) for file, value in names.more]
    try:
        for folder in group.folders:
            folder.mkdir()
            for file, value in limits:
                if value is not None and (folder / file).exists():
                    (folder / file).write_text(str(value))
    except OSError:
        group.remove()
        raise
    return group


def _remove(folder: Path, until: float) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for inner in [path for path in folder.iterdir() if path.is_dir()]:
            _remove(inner, until)
    while folder.exists() and time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                if pid > 0:  # 0: a process that cannot be seen from here; killing "0" would kill this process
                    os.kill(pid, signal.SIGKILL)
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # its last processes are still ending
            time.sleep(0.001)


def _candidates() -> list[Groups]:
    own = {}
    for line in (SELF / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    mounts: dict[str, Path] = {}
    for line in (SELF / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        for name in names:
            if name in own:
                inside = os.path.relpath(own[name], root) if own[name].startswith(root) else "."
                mounts[name] = Path(point) / inside
    found = []
    if {"pids", "memory"} <= mounts.keys():
        found.append(Groups(parents=tuple(dict.fromkeys((mounts["pids"], mounts["memory"]))), version=1))
    if "" in mounts:
        found += [Groups(parents=(folder,), version=2) for folder in (mounts[""], mounts[""].parent)]
    return found
