"""The ScienceWorld simulator: one Java process serves all environments of a Python process. Each has its own world.

The worlds of a process share a counter of objects and a random generator, which decide names and movements. Both are
set before each call to what they would be if the world were alone. Thus an episode depends only on its seed and its
commands.
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
    "-XX:+UseSerialGC",  # one thread of garbage collection instead of one for each core
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # otherwise the order of sets depends on memory addresses
)
JAVA_HELP = "Install a Java runtime, version 8 or newer, such as Debian's default-jre-headless, or set JAVA_HOME."

Variations = dict[str, tuple[int, ...]]


def java() -> str | None:
    """The path of the Java runtime; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    own = Path(home) / "bin" / "java" if home else None
    return str(own) if own is not None and own.is_file() else shutil.which("java")


class Server:
    """The Java process. It ends when the Python process ends, for whatever reason.

    Raises: MissingExtra, if scienceworld or Java is not installed.
    """

    def __init__(self) -> None:
        jar = _package()
        found = java()
        if found is None:
            raise MissingExtra(where=PLACE, what="it needs Java, and no `java` was found.", remedy=JAVA_HELP)
        from scienceworld.scienceworld import GatewayParameters, JavaGateway, launch_gateway  # of py4j

        port, self.process = launch_gateway(
            classpath=jar,
            die_on_exit=True,
            return_proc=True,
            javaopts=list(OPTIONS),
            java_path=found,
            cwd=str(Path(jar).parent),  # it reads its list of object types here, and writes one in any other folder
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
        """End the process. In a forked child this does nothing: the process belongs to the parent."""
        if os.getpid() != self.owner or self.process.poll() is not None:
            return
        self._gateway.shutdown()
        self.process.stdin.close()  # the process waits for this
        try:
            self.process.wait(timeout=10)
        except Exception:
            self.process.kill()
            self.process.wait()


class World:
    """One simulated world."""

    def __init__(self, server: Server) -> None:
        self._server, self._inner = server, server.make_world()
        self._counted, self._calls, self._seed = 0, 0, 0

    def start(self, kind: str, variation: int, simplifications: str, *, seed: int, path: bool = False) -> None:
        """Set up a task. All randomness comes from `seed`. `path`: also make the commands that solve it."""
        self._counted, self._calls, self._seed = 0, 0, seed
        self.call("load", kind, variation, simplifications, path)
        self.call("reset")

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the simulator by its name, with the counter and the generator of this world."""
        with self._server.lock:
            self._server.set_count(self._counted)
            self._server.set_seed(derive(self._seed, self._calls) % (1 << 31))
            self._calls += 1
            given = getattr(self._inner, method)(*arguments)
            self._counted = self._server.count()
        return given

    def texts(self, method: str) -> list[str]:
        """Call a method that returns a list of texts."""
        return [str(text) for text in self.call(method)]


# ---- shared by the environments of a process ----------------------------------------------------------------
_servers: dict[int, Server] = {}
_start = threading.Lock()


def server() -> Server:
    """The Java process of this Python process. The first call starts it, which takes a second.

    Raises: MissingExtra, if scienceworld or Java is not installed.
    """
    with _start:
        found = _servers.get(os.getpid())
        if found is None or found.process.poll() is not None:
            found = _servers[os.getpid()] = Server()
            atexit.register(found.close)
    return found


def take_world() -> World:
    """A world that is free, or a new one."""
    found = server()
    with found.lock:
        return found.free.pop() if found.free else World(found)


def give_back(world: World) -> None:
    """Free a world for `take_world`. Worlds are used again because a new one first reads the simulator's grammar."""
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
    """The variations of a kind of task, as the package divides them: train, dev and test."""
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
    """The package's own commands that solve a task. It makes them in 0.5 to 3 s."""
    world = take_world()
    world.start(kind, variation, simplifications, seed=seed, path=True)
    found = tuple(world.texts("getGoldActionSequence"))
    give_back(world)
    return found


def _package() -> str:
    """The path of the simulator's jar. Raises: MissingExtra."""
    try:
        from scienceworld.constants import JAR_PATH
    except ModuleNotFoundError:
        raise missing_extra("scienceworld", extra="envs", needed_for=PLACE) from None
    return str(JAR_PATH)
