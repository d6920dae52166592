"""The client of Docker, with a fake `docker`: (1) without a daemon it refuses and says so; (2) containers get no
network, no capabilities and all limits; (3) files, input, output and status arrive; (4) time-outs kill the container;
(5) every container is removed, also that of a process that was killed; (6) a start that fails raises.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from palaestra.errors import PalaestraError
from palaestra.tools.sandbox import DockerSandbox, Threat, choose, docker

FAKE = r"""#!/bin/sh
echo "$@" >> "$LOG"
case "$1" in
  version) [ -e "$DOWN" ] && { echo "Cannot connect to the Docker daemon" >&2; exit 1; }; echo 27.0 ;;
  inspect) [ -e "$STARVED" ] && echo true || echo false ;;
  ps) [ -e "$LISTED" ] && cat "$LISTED" ;;
  kill) kill -9 -$(cat "$PID") ;;
  run)
    [ -e "$BROKEN" ] && { echo "no such image" >&2; exit 125; }
    while [ "$1" != the-image ]; do shift; done
    shift
    mkdir -p "$BOX"; cd "$BOX"
    setsid "$@" & echo $! > "$PID"; wait $! ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = FAKE
    for name in ("LOG", "DOWN", "STARVED", "PID", "BROKEN", "BOX", "LISTED"):
        text = text.replace(f'"${name}"', f'"{tmp_path / name.lower()}"')
    program = tmp_path / "docker"
    # `setsid … &` would lose standard input, which a container's client keeps.
    program.write_text(text.replace('setsid "$@" &', 'exec 3<&0; setsid "$@" <&3 &'))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def make(**options: object) -> DockerSandbox:
    return DockerSandbox(image="the-image", **options)


def test_1_no_daemon(fake: Path) -> None:
    (fake / "down").touch()
    with pytest.raises(PalaestraError) as caught:
        choose(backend="docker")
    assert "no daemon answers: Cannot connect to the Docker daemon." in str(caught.value)
    assert "systemctl start docker" in str(caught.value)


def test_1_no_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PalaestraError, match="the program `docker` is not installed"):
        make()


def test_2_arguments(fake: Path) -> None:
    sandbox = make(runtime="runsc", processes=9, disk_mb=3)
    sandbox.exec(["true"], memory_mb=77, cpu_s=2)
    ran = next(line for line in (fake / "log").read_text().splitlines() if line.startswith("run"))
    for words in (
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--user 65534:65534",
        "--memory 77m",
        "--memory-swap 77m",
        "--pids-limit 9",
        "--ulimit cpu=2:3",
        "--runtime runsc",
        "--pull never",
        "size=3m",
    ):
        assert words in ran
    claims = sandbox.guarantees()
    assert claims.isolation == "isolation" and "containers run under `runsc`" in claims.notes
    assert set(claims.misses) == {Threat.NAMESPACE}


def test_3_all_arrives(fake: Path) -> None:
    sandbox = make()
    done = sandbox.exec(["sh", "-c", "cat d/a -; echo bad >&2; exit 4"], stdin="input", files={"d/a": "file "})
    assert (done.rc, done.out, done.err) == (4, "file input", "bad\n")
    (fake / "starved").touch()
    assert make().exec(["sh", "-c", "exit 137"]).killed_by == "memory"


def test_4_time_outs(fake: Path) -> None:
    done = make().exec(["sleep", "30"], timeout_s=0.5)
    assert (done.rc, done.killed_by) == (None, "time")
    assert [line.split()[0] for line in (fake / "log").read_text().splitlines()][-4:] == [
        "run",
        "kill",
        "inspect",
        "rm",
    ]


def test_5_containers_are_removed(fake: Path) -> None:
    make().exec(["true"])
    assert (fake / "log").read_text().splitlines()[-1].startswith("rm --force --volumes palaestra-")


def test_5_containers_of_killed_processes(fake: Path) -> None:
    """The containers of a process that SIGKILL ended ran on and stayed."""
    with subprocess.Popen(["sleep", "60"]) as ended:
        gone = docker.owner(ended.pid)
        ended.kill()
    mine = docker.owner(os.getpid())
    elsewhere = gone.replace("/", "x/", 1)
    lines = [f"aa {mine}", f"bb {gone}", f"cc {elsewhere}", "dd ", "ee x/1/2", f"ff {mine}9"]
    (fake / "listed").write_text("\n".join(lines) + "\n")
    make()
    removed = [line for line in (fake / "log").read_text().splitlines() if line.startswith("rm")]
    assert removed == ["rm --force --volumes bb", "rm --force --volumes ff"]  # ff: the number went to another process
    make().exec(["true"])
    assert f"--label palaestra.owner={mine}" in (fake / "log").read_text()


def test_6_a_failing_start(fake: Path) -> None:
    (fake / "broken").touch()
    with pytest.raises(PalaestraError, match=r"could not start a container: no such image(.|\n)*docker pull the-image"):
        make().exec(["true"])
