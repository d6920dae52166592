"""The ScienceWorld simulator: one Java process for all environments of a Python process, each with a world of its own.

Knows Java and the simulator's calls. Knows nothing of observations and rewards.

Worlds in one process share a counter of things and a random generator, on which names and wanderings depend. Both are
set before each call to what they would be if the world were alone, so that an episode depends on its commands only.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from palaestra.data import derive
from palaestra.errors import MissingExtra, missing_extra

PLACE = "environment scienceworld"
OPTIONS = (
    "-XX:+UseSerialGC",  # one thread of garbage collection instead of one a core
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # the order of sets must not depend on where things lie in memory
)
JAVA_HELP = "Install a Java runtime, version 8 or newer, such as Debian's default-jre-headless, or set JAVA_HOME."

Variations = dict[str, tuple[int, ...]]


def java() -> str | None:
    """Where the Java runtime is; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    own = Path(home) / "bin" / "java" if home else None
    return str(own) if own is not None and own.is_file() else shutil.which("java")


class Server:
    """The Java process. It ends with Python's, however that ends."""

    def __init__(self) -> None:
        jar = _package()
        found = java()
        if found is None:
            raise MissingExtra(where=PLACE, what="it runs on Java, and no `java` was found.", remedy=JAVA_HELP)
        from scienceworld.scienceworld import GatewayParameters, JavaGateway, launch_gateway  # of py4j

        port, self.process = launch_gateway(
            classpath=jar,
            die_on_exit=True,
            return_proc=True,
            javaopts=list(OPTIONS),
            java_path=found,
            cwd=str(Path(jar).parent),  # where it finds its list of kinds of things; elsewhere it writes one
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(auto_field=True, port=port), java_process=self.process
        )
        jvm: Any = self._gateway.jvm
        self.owner, self.lock = os.getpid(), threading.RLock()
        self.make_world = jvm.scienceworld.runtime.pythonapi.PythonInterface
        identifiers = jvm.util.UniqueIdentifier
        self.count, self.set_count = identifiers.count, getattr(identifiers, "count_$eq")
        self.set_seed = getattr(getattr(jvm.scala.util, "Random$"), "MODULE$").setSeed
        self.free: list[World] = []

    def close(self) -> None:
        """End the process; a forked child leaves its parent's alone."""
        if os.getpid() != self.owner or self.process.poll() is not None:
            return
        self._gateway.shutdown()
        self.process.stdin.close()  # what the process waits for
        try:
            self.process.wait(timeout=10)
        except Exception:
            self.process.kill()
            self.process.wait()


class World:
    """One simulated world; `call` names a method of the simulator."""

    def __init__(self, server: Server) -> None:
        self._server, self._inner = server, server.make_world()
        self._counted, self._calls, self._seed = 0, 0, 0

    def start(self, kind: str, variation: int, simplifications: str, *, seed: int, path: bool = False) -> None:
        """Set up a task; everything that is random in it derives from `seed`."""
        self._counted, self._calls, self._seed = 0, 0, seed
        self.call("load", kind, variation, simplifications, path)
        self.call("reset")

    def call(self, method: str, *arguments: Any) -> Any:
        """What the simulator's method gives. Whoever it wakes up finds what it would find in a world alone."""
        with self._server.lock:
            self._server.set_count(self._counted)
            self._server.set_seed(derive(self._seed, self._calls) % (1 << 31))
            self._calls += 1
            given = getattr(self._inner, method)(*arguments)
            self._counted = self._server.count()
        return given

    def texts(self, method: str) -> list[str]:
        """The same of a method that gives a list of texts."""
        return [str(text) for text in self.call(method)]


# ---- shared by the environments of a process ----------------------------------------------------------------
_servers: dict[int, Server] = {}
_start = threading.Lock()


def server() -> Server:
    """This process's Java; started by the first who asks, which takes a second.

    Raises: MissingExtra, if scienceworld or Java is not installed.
    """
    with _start:
        found = _servers.get(os.getpid())
        if found is None or found.process.poll() is not None:
            found = _servers[os.getpid()] = Server()
            atexit.register(found.close)
    return found


def take_world() -> World:
    """A world that nobody uses, or a new one."""
    found = server()
    with found.lock:
        return found.free.pop() if found.free else World(found)


def give_back(world: World) -> None:
    """For the next who asks: worlds are reused, since a new one must read the simulator's grammar first."""
    current = _servers.get(os.getpid())
    if current is world._server:
        current.free.append(world)


@functools.cache
def kinds() -> tuple[str, ...]:
    """The names of all kinds of tasks."""
    _package()
    from scienceworld.constants import ID2TASK

    return tuple(sorted(set(ID2TASK.values())))


@functools.cache
def variations(kind: str) -> Variations:
    """The package's own division of a kind's variations into train, dev and test."""
    world = take_world()
    world.start(kind, 0, "", seed=0)
    found = {
        split: tuple(int(number) for number in world.call(f"getVariations{split.title()}"))
        for split in ("train", "dev", "test")
    }
    give_back(world)
    return found


@functools.lru_cache(maxsize=4096)
def golden_path(kind: str, variation: int, simplifications: str, seed: int) -> tuple[str, ...]:
    """Commands that solve a task, made by the package; 0.5 to 3 s."""
    world = take_world()
    world.start(kind, variation, simplifications, seed=seed, path=True)
    found = tuple(world.texts("getGoldActionSequence"))
    give_back(world)
    return found


def _package() -> str:
    """Where the simulator is."""
    try:
        from scienceworld.constants import JAR_PATH
    except ModuleNotFoundError:
        raise missing_extra("scienceworld", extra="envs", needed_for=PLACE) from None
    return str(JAR_PATH)
