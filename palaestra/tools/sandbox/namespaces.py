"""What programs see inside bubblewrap, and in which of three ways this machine and user can isolate them.

"user": an ordinary user makes a user namespace. "root": root with CAP_SYS_ADMIN mounts as root and then becomes a user
that owns nothing, one for each execution, so that the limit of processes counts only that execution. "become": root
without that capability, as in a plain container, becomes such a user first and then makes a user namespace.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import bpf
from palaestra.tools.sandbox.cgroups import Group, Groups, writable_groups
from palaestra.tools.sandbox.limits import MEGABYTE, Bounds, program
from palaestra.tools.sandbox.processes import clean_environment, filled
from palaestra.tools.sandbox.protocol import Guarantees, Threat

Way = Literal["user", "root", "become"]
HOME = "/box"
SERVER = "/serve.py"
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
KNOWN_USERS = "root:x:0:0::/:/bin/false\nagent:x:{uid}:{uid}::{home}:/bin/sh\n"
INSIDE = 65534  # uid of an ordinary user inside
KERNEL = "a fault of the kernel, which programs share with the host, can break the isolation"
INSTALL = "Install it with: apt install bubblewrap (or dnf, pacman, apk)."
ALLOW = (
    "It needs user namespaces. Allow them with `sysctl kernel.unprivileged_userns_clone=1` or\n"
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; in a container, start it with\n"
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, or as root with `--cap-add SYS_ADMIN`."
)
COUNT = itertools.count()
LEND = Callable[[bytes], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How this machine and user can isolate a program."""

    way: Way
    bwrap: str
    shell: str
    setpriv: str
    python: str
    binds: tuple[str, ...]
    groups: Groups | None

    def view(self, bounds: Bounds, lend: LEND, *, serves: str = "") -> list[str]:
        """The arguments of bubblewrap that set what a program sees.

        Args:
            serves: source of a trusted program that is put at `/serve.py` and makes namespaces of its own. It keeps
                the capabilities for that.
        """
        words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        keeps = ["SETUID", "SETGID", "SETPCAP"] if self.way == "root" else []
        keeps += ["SYS_ADMIN", "SETPCAP", "KILL", "SETFCAP"] if serves else []
        words += [word for name in dict.fromkeys(keeps) for word in ("--cap-add", f"CAP_{name}")]
        if self.way != "root":
            who = "0" if serves else str(INSIDE)
            words += ["--unshare-user", "--uid", who, "--gid", who]
        words += self.files(lend)
        if serves:
            words += ["--perms", "0644", "--file", lend(serves.encode()), SERVER]
        for folder, size, mode in (("/dev/shm", 16, "1777"), ("/tmp", bounds.disk_mb, "1777")):
            words += ["--perms", mode, "--size", str(size * MEGABYTE), "--tmpfs", folder]
        words += ["--remount-ro", "/dev"]
        words += ["--perms", "0777", "--size", str(bounds.disk_mb * MEGABYTE), "--tmpfs", HOME]
        for path in self.binds:  # after /tmp, because a path may be inside /tmp
            made = [parent for parent in reversed(Path(path).parents[:-1]) if str(parent) != "/tmp"]
            for parent in made:  # bubblewrap itself would make them readable by root only
                words += ["--perms", "0755", "--dir", str(parent)]
            words += ["--ro-bind", path, path]
        words += ["--remount-ro", "/", "--chdir", HOME]
        environment = clean_environment({"TMPDIR": "/tmp"}, home=HOME)
        return words + [word for name, value in environment.items() for word in ("--setenv", name, value)]

    def files(self, lend: LEND) -> list[str]:
        """The arguments for the file system, except the folders that programs can write to."""
        words = ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
        for folder in SYSTEM:
            if Path(folder).is_symlink():
                words += ["--symlink", os.readlink(folder), folder]
            elif Path(folder).is_dir():
                words += ["--ro-bind", folder, folder]
        for file in SETTINGS:
            words += ["--ro-bind-try", file, file]
        users = KNOWN_USERS.format(uid=INSIDE, home=HOME).encode()
        words += ["--perms", "0644", "--file", lend(users), "/etc/passwd"]
        return [*words, "--proc", "/proc", "--dev", "/dev"]

    def filter(self, lend: LEND) -> list[str]:
        """The arguments for the filter of system calls, if there is one for this processor."""
        return ["--seccomp", lend(self.program)] if bpf.known() else []

    @property
    def program(self) -> bytes:
        """The filter of system calls; empty if there is none for this processor."""
        return bpf.refusing(counted=self.groups is not None) if bpf.known() else b""

    def drop(self, uid: int) -> list[str]:
        """The beginning of a command line: a program that gives up root inside and then executes what follows."""
        if self.way != "root":
            return []
        who = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return [self.setpriv, *who, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]

    def identity(self, uid: int) -> dict[str, Any]:
        """Options of `Popen` for the user as whom bubblewrap itself runs."""
        return {"user": uid, "group": uid, "extra_groups": []} if self.way == "become" else {}

    def group(self, *, processes: int, memory: int, divided: bool = False) -> Group | None:
        """A new control group. None if there are no control groups here."""
        return self.groups.make(processes=processes, memory=memory, divided=divided) if self.groups else None

    def guarantees(self, backend: str) -> Guarantees:
        """What this way of isolation stops."""
        misses = {}
        if not self.groups:
            misses[Threat.MEMORY_TOTAL] = (
                "each process has a limit, all together have none: no control group for pids and memory can be made"
            )
            misses[Threat.MEMORY_KERNEL] = (
                "without a control group, buffers of sockets and empty files are not counted: a process can hold 2 GB"
            )
        if not bpf.known():
            misses[Threat.NAMESPACE] = "there is no filter of system calls for this processor"
            if not self.groups:
                misses[Threat.MEMORY_FILES] = "there is no filter of system calls, and no control group can be made"
        return Guarantees(
            backend=backend,
            isolation="isolation",
            stops=frozenset(Threat) - misses.keys(),
            misses=misses,
            notes=(KERNEL, f"namespaces are made as {'root' if self.way == 'root' else 'an ordinary user'}"),
        )


@functools.cache
def find_means(*, readable: tuple[str, ...], packages: bool, groups: bool) -> Means:
    """How programs can be isolated here. The ways are tried once in a process.

    Raises: PalaestraError, if no way works. It says what is missing.
    """
    where = "sandbox: bubblewrap"
    bwrap = program("bwrap", needed_for=where, remedy=INSTALL)
    shell = program("sh", needed_for=where, remedy="This back end needs a POSIX system.")
    python, binds = interpreter(packages=packages)
    missing = [path for path in readable if not Path(path).exists()]
    if missing:
        raise PalaestraError(where=where, what=f"`readable` names {missing[0]!r}, which does not exist.")
    reasons = []
    for way in ways():
        means = Means(
            way=way,
            bwrap=bwrap,
            shell=shell,
            setpriv=shutil.which("setpriv") or "",
            python=python,
            binds=tuple(dict.fromkeys((*binds, *readable))),
            groups=writable_groups() if groups else None,
        )
        reason = _try(means)
        if not reason:
            return means
        reasons.append(f"as {way}: {reason}")
    raise PalaestraError(where=where, what=f"bubblewrap cannot isolate here ({'; '.join(reasons)}).", remedy=ALLOW)


def ways() -> tuple[Way, ...]:
    """The ways that may work for this user, the best one first."""
    if os.geteuid() != 0:
        return ("user",)
    return ("root", "become") if shutil.which("setpriv") else ("become",)


def interpreter(*, packages: bool) -> tuple[str, tuple[str, ...]]:
    """The Python interpreter that programs get, and the folders outside /usr that it needs."""
    base = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inner = next((path for path in (base / "bin" / version, base / "bin" / "python3") if path.exists()), None)
    chosen = sys.executable if packages else str(inner or Path(sys.executable).resolve())
    folders = [base, *([Path(sys.prefix)] if packages else [])]
    return chosen, tuple(str(folder) for folder in folders if not folder.is_relative_to("/usr"))


def own_uid() -> int:
    """The uid of a user for one execution, who owns nothing and whom no other running execution has."""
    place = os.getpid() % 4096 * 4096 + next(COUNT) % 4096
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= 1_900_000_000 and first + count > 1_950_000_000:
            return 1_900_000_000 + place
    return 65000 + place % 500  # in a container whose uids end at 65535


def _try(means: Means) -> str:
    """Try one way of isolation. Returns the reason why it does not work, or an empty text."""
    lent: list[int] = []

    def lend(content: bytes) -> str:
        lent.append(filled(content))
        return str(lent[-1])

    uid = own_uid()
    words = means.view(Bounds(), lend) + means.filter(lend)
    try:
        done = subprocess.run(
            [means.bwrap, *words, "--", *means.drop(uid), means.python, "-I", "-S", "-c", "print('inside')"],
            pass_fds=lent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            env={},
            **means.identity(uid),
        )
    except (OSError, subprocess.SubprocessError) as fault:
        return str(fault)
    finally:
        for fd in lent:
            os.close(fd)
    return "" if done.stdout == "inside\n" else (done.stderr.strip() or f"status {done.returncode}")
