"""The warm Python inside a sandbox. It forks for every call and isolates each call from all others.

This file is sent into the sandbox alone, so it uses the standard library only. `server.py` and `living.py` talk to it.
In the process of a call, nothing here is trusted once the code of the call has started.

    the server ──fork──► a call: one program, from start to end
               └─fork──► a keeper ──fork──► the head of a session, which holds the variables
                                            └─fork──► each piece of code; if no limit kills it, it becomes the head
"""

from __future__ import annotations

import ast
import atexit
import base64
import contextlib
import ctypes
import gc
import importlib
import io
import json
import linecache
import os
import pickle
import resource
import select
import signal
import socket
import stat
import struct
import sys
import threading
import traceback
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 24, 38, 22, 2
MEGABYTE = 1024 * 1024
LIBC = ctypes.CDLL(None, use_errno=True)
NAME = "main.py"  # what tracebacks call the code


# ---- the server -------------------------------------------------------------------------------------------
def serve(control: socket.socket, settings: dict[str, Any]) -> None:
    """Fork a process for each request until the other side closes the socket."""
    for module in settings["preload"]:
        importlib.import_module(module)
    wake, wakes = os.pipe()
    for fd in (wake, wakes):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY) if settings["way"] != "none" else -1
    gc.collect()
    gc.freeze()  # a collection in a fork would touch all shared memory, and so copy it
    control.sendall(b"ready")
    running: dict[int, tuple[int, int]] = {}  # process → (number of the request, descriptor that reports its end)
    while True:
        ready = _readable(control.fileno(), wake)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        _reap(running)
        if control.fileno() not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, 4096, 8)
        if not message:
            break
        request = json.loads(message)
        if "kill" in request:
            for pid in [pid for pid, (number, _) in running.items() if number == request["kill"]]:
                _kill(pid, settings["way"])
        else:
            end_fd, *rest = fds
            pid = _fork(own)
            if pid == 0:
                control.close()
                _become(rest, settings, request)
            for fd in rest:
                os.close(fd)
            running[pid] = (request["number"], end_fd)
    for pid in running:
        _kill(pid, settings["way"])


def _readable(*fds: int, wait_s: float | None = None) -> list[int]:
    """The descriptors that can be read or are closed at the other end. Waits for one, at most `wait_s` seconds."""
    poll = select.poll()  # `select.select` refuses the numbers from 1024 on
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000)]


def _fork(own: int) -> int:
    """Fork. With `own`, the new process is the first one of a new PID namespace."""
    if own >= 0:
        _check(LIBC.setns(own, CLONE_NEWPID))  # back to the server's own namespace, which a new one must be made from
        _check(LIBC.unshare(CLONE_NEWPID))
    return os.fork()


def _reap(running: dict[int, tuple[int, int]]) -> None:
    while running:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in running:
            _, end_fd = running.pop(pid)
            with contextlib.suppress(OSError):
                code = os.waitstatus_to_exitcode(status)
                os.write(end_fd, json.dumps({"status": 128 - code if 128 < code <= 192 else code}).encode())
            os.close(end_fd)


def _kill(pid: int, way: str) -> None:
    """Kill a process and all that it started: all in its PID namespace or, without isolation, all in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL) if way != "none" else os.killpg(pid, signal.SIGKILL)
    for name in os.listdir("/proc") if way == "none" and os.path.isdir("/proc/self") else ():
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat") as file:  # state, parent, group, session follow the name in parentheses
                led_by = int(file.read().rpartition(")")[2].split()[3]) if name.isdigit() else 0
            if led_by == pid:
                os.kill(int(name), signal.SIGKILL)


def _become(fds: list[int], settings: dict[str, Any], request: dict[str, Any]) -> None:
    """In the new process: take the descriptors, isolate the process and run the code. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _only(fds)
        if request["door"]:  # the last descriptor: what is written to it moves this process into its control group
            os.write(len(fds) - 1, b"0")
            os.close(len(fds) - 1)
        with os.fdopen(3, "rb") as file:
            job = pickle.load(file)
        link = socket.socket(fileno=4) if request["session"] else None
        isolate(settings, job, request["uid"])
        if link:
            keep(link)
        if settings["way"] != "none":
            stand_in()
        run_program(job["code"], job["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _only(fds: list[int]) -> None:
    """Renumber the descriptors: 0, 1 and 2 are standard, 3 is the job, 4 the link of a session, the last one the door
    of a control group. Close all others."""
    high = [os.dup2(fd, 200 + place) for place, fd in enumerate(fds)]
    for place, fd in enumerate(high):
        os.dup2(fd, place, inheritable=place < 3)
    os.closerange(len(fds), 4096)


# ---- isolation of one call --------------------------------------------------------------------------------
def isolate(settings: dict[str, Any], job: dict[str, Any], uid: int) -> None:
    """Give this process its own files, processes, network and user, set its limits, and drop all capabilities."""
    way, home = settings["way"], job["home"]
    if way != "none":
        _check(LIBC.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET))
        _mount(None, "/", None, MS_REC | MS_PRIVATE, "")
        hidden = [(path, os.open(path, os.O_PATH)) for path in settings["binds"] if path.startswith("/tmp/")]
        for folder, size in ((home, settings["disk_mb"]), ("/tmp", settings["disk_mb"]), ("/dev/shm", 16)):
            _mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}m,nr_inodes=8192,mode=0777")
        for path, fd in hidden:  # paths that programs may read, and that the new /tmp hides
            folder = path if stat.S_ISDIR(os.fstat(fd).st_mode) else os.path.dirname(path)
            os.makedirs(folder, 0o755, exist_ok=True)
            if folder != path:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            _mount(f"/proc/self/fd/{fd}", path, None, MS_BIND, "")
            os.close(fd)
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "")
    os.chdir(home)
    os.umask(0)
    write_files(job["files"])
    os.umask(0o022)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out for all together, the kernel kills a call and not the server
    if way == "user":
        outside = os.getuid()
        _check(LIBC.unshare(CLONE_NEWUSER))  # so that the limit of processes counts this call only
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {outside} 1"), ("gid_map", f"{uid} {outside} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    for name, soft, hard in job["limits"]:
        resource.setrlimit(getattr(resource, name), (soft, hard))
    if way == "none":
        return
    for capability in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    if way == "root":
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, empty = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # version 3: no capability in any set
    _check(LIBC.capset(header, empty))
    _check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if settings["filter"]:
        load_filter(settings["filter"])


def load_filter(program: bytes) -> None:
    """Load the filter of system calls. Everything that this process starts has it too."""
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _check(LIBC.prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(head), 0, 0))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str) -> None:
    text = [value.encode() if value is not None else None for value in (source, target, kind)]
    _check(LIBC.mount(*text, ctypes.c_ulong(flags), data.encode()))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def stand_in() -> None:
    """Fork and return in the child, because the first process of a PID namespace ignores signals without a handler.

    The parent waits for the child and ends with its status.
    """
    pid = os.fork()
    if pid == 0:
        return
    os.closerange(0, 3)
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


# ---- one program ------------------------------------------------------------------------------------------
def run_program(code: str, argv: list[str]) -> None:
    """Run code as `python main.py` would, and end the process."""
    sys.argv = argv
    _leave(_execute(code, _module(), show_last=False))


def _module() -> dict[str, Any]:
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    sys.path.insert(0, os.getcwd())
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        opened = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        setattr(sys, stream, io.TextIOWrapper(opened, encoding="utf-8", errors="replace", line_buffering=True))
    return module.__dict__


def _execute(code: str, variables: dict[str, Any], *, show_last: bool) -> int:
    """Run code. With `show_last`, print the value of a last expression. Returns an exit status."""
    linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
    try:
        tree = ast.parse(code, NAME)
        last = tree.body.pop() if show_last and tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, NAME, "exec"), variables)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), variables)
            if value is not None:
                print(repr(value))
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as fault:
        _show(fault)
        return 1
    return 0


def _show(fault: BaseException) -> None:
    """Print the traceback, beginning with the first frame of the code itself."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    traceback.print_exception(type(fault), fault, trace, limit=-8)


def _leave(status: int) -> None:
    for tidy in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(Exception):
            tidy()
    os._exit(status & 0xFF)


# ---- a session --------------------------------------------------------------------------------------------
def keep(link: socket.socket) -> None:
    """Be the first process of a session: start its head, and wait for processes that end until none is left."""
    if os.fork() == 0:
        _head(link, _module())
    link.close()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            os._exit(0)


def _head(link: socket.socket, variables: dict[str, Any]) -> None:
    """Answer requests. Code runs in a fork: if it ends, the fork becomes the head; if it is killed, this one stays."""
    while True:
        request, fds = _receive(link)
        if request is None:
            os._exit(0)
        if request["do"] == "files":
            _send(link, {"files": read_files(".", request["most"])})
            continue
        write_files(request["files"])
        alive, commits = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive)
            os.setpgid(0, 0)
            for place, fd in enumerate(fds):
                os.dup2(fd, place + 1)
                os.close(fd)
            status = _execute(request["code"], variables, show_last=True)
            with contextlib.suppress(Exception):
                _ = sys.stdout.flush(), sys.stderr.flush()
            null = os.open(os.devnull, os.O_WRONLY)
            for number in (1, 2):
                os.dup2(null, number)
            os.close(null)
            os.write(commits, b"x")  # from here on this process is the head
            os.close(commits)
            _send(link, {"status": status, "kept": True})
            continue
        os.close(commits)
        for fd in fds:
            os.close(fd)
        ready = _readable(alive, wait_s=request["timeout_s"])
        if ready and os.read(alive, 1):
            os._exit(0)  # the fork is the head now
        os.close(alive)
        if not ready:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        _send(link, {"status": code, "kept": True, "lost": True, "timed_out": not ready})


def _receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    head, fds, _, _ = socket.recv_fds(link, 8, 2)
    if len(head) < 8:
        return None, fds
    left, parts = struct.unpack("=Q", head)[0], []
    while left:
        part = link.recv(min(left, MEGABYTE))
        if not part:
            return None, fds
        parts.append(part)
        left -= len(part)
    return pickle.loads(b"".join(parts)), fds


def _send(link: socket.socket, reply: dict[str, Any]) -> None:
    content = json.dumps(reply).encode()
    link.sendall(struct.pack("=Q", len(content)) + content)


# ---- files ------------------------------------------------------------------------------------------------
def write_files(files: dict[str, bytes]) -> None:
    """Write files into the current folder. A link at the path of a file is replaced, not followed."""
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777)
        with os.fdopen(fd, "wb") as file:
            file.write(content)


def read_files(folder: str, most: int) -> dict[str, str]:
    """The regular files in a folder as base64, up to `most` bytes in all. Links and special files are left out."""
    found, left = {}, most
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:  # a link, a socket, or a file that may not be read
                continue
            with os.fdopen(fd, "rb") as file:
                size = os.fstat(fd).st_size
                if stat.S_ISREG(os.fstat(fd).st_mode) and size <= left:
                    content = file.read(left)
                    left -= len(content)
                    found[os.path.relpath(path, folder)] = base64.b64encode(content).decode()
    return found


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as first:
        chosen = pickle.load(first)
    serve(socket.socket(fileno=int(sys.argv[2])), chosen)
