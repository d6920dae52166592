"""Attacking programs, one for each threat, as texts. Each prints ESCAPED if it succeeds."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from palaestra.tools.sandbox import Threat

SECRET = "the-secret-of-the-host"


@dataclass
class Host:
    """What the test puts on the host for programs to reach."""

    folder: Path
    victim: subprocess.Popen[bytes]
    server: socket.socket
    mark: str = field(default_factory=lambda: f"mark-{uuid.uuid4().hex}")
    visits: int = 0

    @property
    def port(self) -> int:
        return self.server.getsockname()[1]

    def left_behind(self) -> list[int]:
        """Processes of the host whose command line bears the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


@contextmanager
def host(folder: Path) -> Iterator[Host]:
    """A canary file, a process that sleeps and a server that counts its visitors."""
    (folder / "canary").write_text(SECRET)
    (folder / "canary").chmod(0o644)
    (folder / "open").mkdir(mode=0o777, exist_ok=True)
    (folder / "open").chmod(0o777)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = socket.create_server(("127.0.0.1", 0))
    it = Host(folder, victim, server)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            it.visits += 1
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        victim.kill()
        victim.wait()


def code(threat: Threat, it: Host) -> str:
    """The program that tries this."""
    places = {
        "CANARY": str(it.folder / "canary"),
        "OUTSIDE": str(it.folder / "open" / "written"),
        "PORT": str(it.port),
        "VICTIM": str(it.victim.pid),
        "MARK": it.mark,
    }
    text = CODE[threat]
    for name, value in places.items():
        text = text.replace(f"<{name}>", value)
    return text


CODE = {
    Threat.ENDLESS: "import time\ntime.sleep(60)\nprint('ESCAPED')",
    Threat.BUSY: "n = 0\nwhile True: n += 1",
    Threat.MEMORY: "x = bytearray(8 << 30)\nx[::4096] = x[::4096]\nprint('ESCAPED')",
    Threat.MEMORY_FILES: """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
block, held, files = bytes(4 << 20), 0, []
try:
    while held < (300 << 20):
        files.append(os.memfd_create("held"))
        held += os.write(files[-1], block)
except OSError as fault:
    print("memory files", fault)
for _ in range(25):
    segment = libc.shmget(0, 12 << 20, 0o1600)
    place = libc.shmat(segment, None, 0) if segment >= 0 else None
    if place is None or place == ctypes.c_void_p(-1).value:
        print("shared memory", os.strerror(ctypes.get_errno()))
        break
    libc.shmctl(segment, 0, None)  # it is removed when this process ends
    ctypes.memset(place, 1, 12 << 20)
    held += 12 << 20
    if libc.shmdt(ctypes.c_void_p(place)): break
print("ESCAPED" if held >= (300 << 20) else held)
""",
    Threat.MEMORY_KERNEL: """
import os, socket, time
held, kept = 0, []
def fill(*ends):
    global held
    for end in ends:
        kept.append(end)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        end.setblocking(False)
        try:
            while True: held += end.send(bytes(1 << 17))
        except BlockingIOError:
            pass
try:
    server = socket.create_server(("127.0.0.1", 0))
    for _ in range(50):
        kept.append(socket.create_connection(server.getsockname(), timeout=1))
        fill(server.accept()[0])
except OSError as fault:
    print("TCP", fault)
try:
    for _ in range(60): fill(*socket.socketpair())
except OSError as fault:
    print("sockets", fault)
begun, count = time.monotonic(), 0
try:
    while held + count * 1000 < (400 << 20) and time.monotonic() - begun < 6:
        os.close(os.open(f"/tmp/{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as fault:
    print("files", fault)
print("ESCAPED" if held + count * 1000 >= (400 << 20) else "stopped", held >> 20, count)
""",
    Threat.MEMORY_TOTAL: """
import os
ready, done = os.pipe()
counted, end = os.pipe()
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(end)
        held = bytearray(60 << 20)
        held[::4096] = b"x" * len(held[::4096])
        os.write(done, b"x")
        os.close(done)
        os.read(counted, 1)  # until the parent has ended
        os._exit(0)
os.close(done)
count = 0
while count < 8 and os.read(ready, 1): count += 1
held = sum(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)  # one that was killed holds nothing
print("ESCAPED" if count == held == 8 else (count, held))
""",
    Threat.DISK: """
import io, os, zipfile
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
    for i in range(8):
        archive.writestr(f"{i}.bin", bytes(4 << 20))
try:
    zipfile.ZipFile(packed).extractall(".")
except OSError as fault:
    print(fault)
written = sum(os.path.getsize(f) for f in os.listdir(".") if f.endswith(".bin"))
print("ESCAPED" if written > (9 << 20) else "stopped", written)
""",
    Threat.OUTPUT: "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    Threat.FORK_BOMB: """
import os, sys, time
made = 0
try:
    for _ in range(200):  # the gentle part: without this limit the bomb is never lit
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError as fault:
    print("limited at", made, fault)
else:
    print("ESCAPED")
    sys.exit()
sys.stdout.flush()
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    Threat.DAEMON: """
import subprocess, sys, os
if os.fork() == 0:
    os.setsid()
    null = subprocess.DEVNULL
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "<MARK>"], start_new_session=True,
                     stdin=null, stdout=null, stderr=null)
    os._exit(0)
os.wait()
print("left it")
""",
    Threat.READ_HOST: """
for path in ("<CANARY>", "/etc/shadow", "/proc/1/environ", "/proc/1/root<CANARY>", "/root/.bash_history",
             "/proc/<VICTIM>/environ"):
    try:
        text = open(path).read()
    except OSError as fault:
        print(path, fault.strerror)
    else:
        print("ESCAPED" if "secret" in text or "shadow" in path or "<VICTIM>" in path else "read", path)
""",
    Threat.WRITE_HOST: """
import os
for path in ("<OUTSIDE>", "/usr/written-<MARK>", "/etc/written-<MARK>"):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write("x")
    except OSError as fault:
        print(path, fault.strerror)
""",
    Threat.SYMLINK: """
import os
os.symlink("<CANARY>", "in")
os.symlink("<OUTSIDE>", "out")
os.symlink("/", "root")
for path in ("in", "root<CANARY>"):
    try:
        print("ESCAPED", open(path).read())
    except OSError as fault:
        print(path, fault.strerror)
try:
    open("out", "w").write("x")
except OSError as fault:
    print(fault.strerror)
""",
    Threat.NETWORK: """
import socket
try:
    socket.create_connection(("127.0.0.1", <PORT>), timeout=3).close()
    print("ESCAPED")
except OSError as fault:
    print(fault)
try:
    socket.getaddrinfo("example.com", 80)
    print("resolved")
except OSError as fault:
    print(fault)
""",
    Threat.SIGNAL: """
import os
try:
    os.kill(<VICTIM>, 15)
    print("ESCAPED")
except OSError as fault:
    print(fault)
""",
    Threat.NAMESPACE: """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
calls = {  # name: (number here, arguments) - each would succeed or fail otherwise than with EPERM or ENOSYS
    "unshare": (97 if arm else 272, 0x10000000),
    "clone": (220 if arm else 56, 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": (435, 0, 0),
    "mount": (40 if arm else 165, 0, b"/tmp", b"tmpfs", 0, 0),
    "ptrace": (117 if arm else 101, 0, 0, 0, 0),
    "bpf": (280 if arm else 321, 0, 0, 0),
    "keyctl": (219 if arm else 250, 0, -3, 1),
    "io_uring_setup": (425, 0, 0),
    "setns": (268 if arm else 308, 0, 0),
    "perf_event_open": (241 if arm else 298, 0, 0, -1, -1, 0),
}
for name, arguments in calls.items():
    result = libc.syscall(*arguments)
    if name == "clone" and result == 0:
        os._exit(0)
    code = ctypes.get_errno()
    print(name, os.strerror(code) if result < 0 else "done")
    if not (result < 0 and code in (1, 38)):
        print("ESCAPED", name)
""",
}
