"""Control groups, which limit the number and the memory of all processes of one execution together.

A group is made only beside or below the group of this process, and only if that changes no other group. Both versions
of the kernel's interface are supported.
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
NAMES = {  # version → files of: the limit of processes, the limit of memory, the count of kills for memory
    1: ("pids.max", "memory.limit_in_bytes", "memory.oom_control"),
    2: ("pids.max", "memory.max", "memory.events"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group. Version 1 has a folder for each controller, version 2 one folder for both."""

    folders: tuple[Path, ...]
    version: int

    def add(self, pid: int) -> None:
        """Move a process into the group. Processes that it starts from now on are in the group too."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def killed_for_memory(self) -> int:
        """Number of processes of the group that the kernel has killed for the limit of memory."""
        for folder in self.folders:
            file = folder / NAMES[self.version][2]
            if file.exists():
                pairs = (line.split() for line in file.read_text().splitlines())
                return sum(int(count) for name, count in pairs if name == "oom_kill")
        return 0

    def remove(self, *, wait_s: float = 5.0) -> None:
        """Kill the processes that are still in the group, and remove the group."""
        until = time.monotonic() + wait_s
        for folder in self.folders:
            while folder.exists() and time.monotonic() < until:
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                try:
                    folder.rmdir()
                except OSError:  # its last processes are still ending
                    time.sleep(0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The folders in which this process may make groups."""

    parents: tuple[Path, ...]
    version: int

    def make(self, *, processes: int, memory: int) -> Group:
        """Make a group with a limit of processes and a limit of memory in bytes.

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
