"""Control groups: one for each execution, with a limit of processes and of memory for all of them together.

Knows the two versions of the kernel's interface. Knows nothing of what runs in a group.
A group is made only beside or below the own one, and only if that works without changing any other group.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

SELF = Path("/proc/self")
COUNT = itertools.count()
NAMES = {  # version → (limit of processes, limit of memory, kills by memory)
    1: ("pids.max", "memory.limit_in_bytes", "memory.oom_control"),
    2: ("pids.max", "memory.max", "memory.events"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group: a folder for each controller; version 2 has one folder for both."""

    folders: tuple[Path, ...]
    version: int

    def add(self, pid: int) -> None:
        """Move a process into the group; what it starts from now on is in it too."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def killed_for_memory(self) -> int:
        """How many of its processes the kernel has killed because of the limit of memory."""
        for folder in self.folders:
            file = folder / NAMES[self.version][2]
            if file.exists():
                pairs = (line.split() for line in file.read_text().splitlines())
                return sum(int(count) for name, count in pairs if name == "oom_kill")
        return 0

    def remove(self, *, wait_s: float = 5.0) -> None:
        """Kill what is still in it and remove it."""
        until = time.monotonic() + wait_s
        for folder in self.folders:
            while folder.exists() and time.monotonic() < until:
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                try:
                    folder.rmdir()
                except OSError:  # its last processes are on their way out
                    time.sleep(0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where this process may make groups."""

    parents: tuple[Path, ...]
    version: int

    def make(self, *, processes: int, memory: int) -> Group:
        """A new group with limits of processes and bytes.

        Raises: OSError, if the kernel refuses.
        """
        name = f"palaestra-{os.getpid()}-{next(COUNT)}"
        group = Group(folders=tuple(parent / name for parent in self.parents), version=self.version)
        pids_max, memory_max, _ = NAMES[self.version]
        try:
            for folder in group.folders:
                folder.mkdir()
                for file, value in ((pids_max, processes), (memory_max, memory), ("memory.swap.max", 0)):
                    if (folder / file).exists():
                        (folder / file).write_text(str(value))
        except OSError:
            group.remove()
            raise
        return group


@functools.cache
def writable_groups() -> Groups | None:
    """Groups that limit processes and memory, tried once by making one; None where this is not possible."""
    try:
        candidates = list(_candidates())
    except (OSError, ValueError):
        return None
    for groups in candidates:
        try:
            group = groups.make(processes=8, memory=64 * 1024 * 1024)
        except OSError:
            continue
        limits = {name for folder in group.folders for name in NAMES[groups.version][:2] if (folder / name).exists()}
        movable = all(os.access(parent / "cgroup.procs", os.W_OK) for parent in groups.parents)
        group.remove()
        if len(limits) == 2 and movable:
            return groups
    return None


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
