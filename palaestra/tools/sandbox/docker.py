"""The back end that runs commands in Docker containers. You provide the daemon and the images."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox.cgroups import Blame
from palaestra.tools.sandbox.limits import Bounds, Job, job, program
from palaestra.tools.sandbox.processes import Live, clean_environment, execution, supervise
from palaestra.tools.sandbox.protocol import Execution, Guarantees, Threat
from palaestra.tools.sandbox.watching import in_thread

HOME = "/box"
LABEL = "palaestra.owner"
COUNT = itertools.count()
START = "Start one (`systemctl start docker`), or set DOCKER_HOST; or use bubblewrap, which needs no daemon."
# Standard input begins with the files, as an archive of known length. The rest of it belongs to the program.
UNPACK = 'head -c {size} | tar -x -f - && exec "$@"'


class DockerSandbox:
    """Runs each command in a new container without network. Only the work folder can be written to.

    Args:
        image: image of the containers. It must have `sh`, `head` and `tar`, and be on the machine already.
        runtime: another runtime that the daemon knows, such as `runsc` (gVisor), whose programs do not reach the
            host's kernel directly.
        python: command of the Python interpreter in the image.
        max_output, disk_mb, processes: as in `Bounds`.

    Raises: PalaestraError, if no client is installed or no daemon answers.
    """

    name = "docker"

    def __init__(
        self,
        *,
        image: str = "python:3.11-slim",
        runtime: str = "",
        python: str = "python3",
        max_output: int = 65536,
        disk_mb: int = 64,
        processes: int = 64,
    ) -> None:
        self._bounds = Bounds(max_output=max_output, disk_mb=disk_mb, processes=processes)
        self._docker = client()
        self._image, self._runtime = image, runtime
        sweep(self._docker)
        self._live = Live(self.name)
        self.python = python

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
        network: Literal["none"] = "none",
    ) -> Execution:
        """Run a command in a new container and wait for its end. The container's start counts toward `timeout_s`."""
        return self._run(self._job(command, stdin, files, timeout_s, memory_mb, cpu_s, network))

    async def aexec(
        self,
        command: Sequence[str],
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        timeout_s: float = 10.0,
        memory_mb: int = 512,
        cpu_s: float | None = None,
        network: Literal["none"] = "none",
    ) -> Execution:
        """Like `exec`, without blocking the event loop."""
        checked = self._job(command, stdin, files, timeout_s, memory_mb, cpu_s, network)
        return await in_thread(self._live.threads, lambda cancel_fd: self._run(checked, cancel_fd))

    def guarantees(self) -> Guarantees:
        """What containers stop with the daemon's settings."""
        missed = Threat.NAMESPACE
        return Guarantees(
            backend=self.name,
            isolation="isolation",
            stops=frozenset(Threat) - {missed},
            misses={missed: "the daemon's own filter of system calls decides, which allows ptrace"},
            notes=(
                f"containers run under `{self._runtime}`" if self._runtime else "containers share the host's kernel",
                "whoever may use the daemon's socket has the rights of root on its machine",
            ),
        )

    def close(self) -> None:
        """Kill the commands that still run."""
        self._live.close()

    def arguments(self, task: Job, name: str, *, size: int) -> list[str]:
        """The complete command line of one execution."""
        home = f"{HOME}:rw,exec,nosuid,nodev,size={self._bounds.disk_mb}m,mode=1777"
        words = [self._docker, "run", "--interactive", "--name", name, "--network", "none", "--read-only"]
        words += ["--pull", "never", "--init", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        words += ["--user", "65534:65534", "--workdir", HOME, "--tmpfs", home, "--ipc", "none"]
        words += ["--memory", f"{task.memory_mb}m", "--memory-swap", f"{task.memory_mb}m"]
        words += ["--pids-limit", str(self._bounds.processes), "--ulimit", f"cpu={task.cpu_s}:{task.cpu_s + 1}"]
        words += ["--ulimit", f"nofile={self._bounds.open_files}", "--ulimit", "core=0", "--log-driver", "none"]
        words += ["--runtime", self._runtime] if self._runtime else []
        words += ["--label", f"{LABEL}={owner(os.getpid())}"]
        environment = clean_environment({"TMPDIR": HOME}, home=HOME)
        words += [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
        return [*words, self._image, "sh", "-c", UNPACK.format(size=size), "start", *task.command]

    def _run(self, task: Job, cancel_fd: int = -1) -> Execution:
        packed = archive(task.files)
        name = f"palaestra-{os.getpid()}-{next(COUNT)}"
        task = Job(
            command=task.command,
            stdin=packed + task.stdin,
            files={},
            timeout_s=task.timeout_s,
            memory_mb=task.memory_mb,
            cpu_s=task.cpu_s,
        )
        try:
            process = self._live.start(self.arguments(task, name, size=len(packed)))
            ended, status, watch, seconds = supervise(
                process, task, self._bounds, live=self._live, cancel_fd=cancel_fd, clean=lambda: self._kill(name)
            )
            if ended == "itself" and status == 125:
                raise PalaestraError(
                    where="sandbox: docker",
                    what=f"the daemon could not start a container: {watch.err.text.strip()}",
                    remedy=f"Check that the image is there: docker pull {self._image}",
                )
            status = 128 - status if 128 < status <= 192 else status
            blame: Blame = "itself" if self._starved(name) else "nobody"
            return execution(ended, status, watch, seconds, blame=blame)
        finally:
            _ask(self._docker, "rm", "--force", "--volumes", name)

    def _kill(self, name: str) -> None:
        _ask(self._docker, "kill", name)  # killing the client does not end the container

    def _starved(self, name: str) -> bool:
        return _ask(self._docker, "inspect", "--format", "{{.State.OOMKilled}}", name) == "true"

    def _job(
        self,
        command: Sequence[str],
        stdin: str,
        files: Mapping[str, str | bytes] | None,
        timeout_s: float,
        memory_mb: int,
        cpu_s: float | None,
        network: str,
    ) -> Job:
        return job(
            command,
            stdin=stdin,
            files=files,
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            cpu_s=cpu_s,
            network=network,
            bounds=self._bounds,
        )


def client() -> str:
    """The path of the docker client.

    Raises: PalaestraError, if it is not installed or no daemon answers it.
    """
    found = program("docker", needed_for="sandbox: docker", remedy="Install Docker, or use bubblewrap.")
    try:
        command = [found, "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10)
        reason = "" if done.returncode == 0 else (done.stderr.strip() or f"status {done.returncode}")
    except (OSError, subprocess.SubprocessError) as fault:
        reason = str(fault)
    if reason:
        raise PalaestraError(where="sandbox: docker", what=f"no daemon answers: {reason.rstrip('.')}.", remedy=START)
    return found


def owner(pid: int) -> str:
    """A process by the start of the machine, the PID namespace, the number and its own start. Empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        begun = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{pid}/{begun}"
    except OSError:
        return ""


def sweep(docker: str) -> None:
    """Remove the containers of processes of this machine and PID namespace that have ended."""
    here = owner(os.getpid()).rsplit("/", 2)[0]
    listed = _ask(
        docker, "ps", "--all", "--filter", f"label={LABEL}", "--format", f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    )
    for line in listed.splitlines():
        container, _, label = line.partition(" ")
        place, _, rest = label.rpartition("/")[0].rpartition("/")
        if here and place == here and rest.isdigit() and owner(int(rest)) != label:
            _ask(docker, "rm", "--force", "--volumes", container)


def archive(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar archive, in which everybody may read, write and execute them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o777
            packed.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _ask(docker: str, *words: str) -> str:
    try:
        done = subprocess.run([docker, *words], capture_output=True, encoding="utf-8", errors="replace", timeout=30)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
