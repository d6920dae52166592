"""Memory of one program among others: (1) a call or session that takes more than its own limit is ended and told so,
and its neighbors in the same server go on; (2) if all keep their own limits and the total is reached, the one that is
ended is told that it was not at fault; (3) control groups of both versions get all limits, and an inner group is found
guilty only of its own limit; (4) a process that cannot be seen is never killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palaestra.tools.sandbox import PythonPool, Session
from palaestra.tools.sandbox.cgroups import Deaths, Group, Groups, sweep, writable_groups
from tests.extras import skip_without

LARGE = "x = bytearray(40 << 20)\nx[::4096] = x[::4096]\n"  # so that the kernel chooses the piece and not the head
GREEDY = "import os, time\nfor n in range({n}): os.write(os.memfd_create('x'), bytes(16 << 20))\nprint('held')"
DECENT = "x = bytearray({mb} << 20)\nx[::4096] = x[::4096]\nimport time\ntime.sleep(1.5)\nprint('fine')"


@pytest.fixture(scope="module")
def pool() -> Iterator[PythonPool]:
    skip_without("bubblewrap")
    if writable_groups() is None:
        pytest.skip("no control groups can be made here")
    with PythonPool(workers=1, total_mb=400, disk_mb=32) as made:
        yield made


def test_1_the_greedy_one_is_ended(pool: PythonPool) -> None:
    """It could take the total, and then its neighbor was killed and told that it ran out of memory itself."""
    with ThreadPoolExecutor() as threads:
        decent = threads.submit(pool.run, DECENT.format(mb=60), memory_mb=200)
        for _ in range(3):
            done = pool.run(GREEDY.format(n=30), memory_mb=128)
            assert (done.rc, done.killed_by, done.oom, done.out) == (-9, "memory", True, "")
        assert decent.result().out == "fine\n"


def test_1_sessions(pool: PythonPool) -> None:
    with Session(pool, memory_mb=128) as greedy, Session(pool, memory_mb=200) as decent:
        decent.run("x = bytearray(60 << 20)\nx[::4096] = x[::4096]")
        greedy.run("y = 1")
        done = greedy.run(LARGE + GREEDY.format(n=30))
        assert (done.execution.killed_by, done.execution.oom, done.state) == ("memory", True, "before")
        assert greedy.run("y").execution.out == "1\n"
        assert greedy.run("import os\nos.kill(os.getpid(), 9)").execution.killed_by == "signal"  # not memory again
        assert decent.run("len(x) >> 20").execution.out == "60\n"


def test_2_nobody_is_guilty(pool: PythonPool) -> None:
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda _: pool.run(DECENT.format(mb=150), memory_mb=250), range(3)))
    ended = [one for one in done if one.rc != 0]
    assert ended and len(ended) < 3
    for one in ended:
        assert (one.killed_by, one.oom) == ("worker", False)
        assert "memory ran out for everything that runs here; this program was ended within its own limit" in one.err


def folder_with(folder: Path, files: dict[str, str]) -> Path:
    if not folder.exists():
        folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


class FakeKernel:
    """Fills each new folder with the files that a control group of this version has."""

    def __init__(self, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
        if version == 1:
            memory = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.use_hierarchy")
            memory += ("memory.kmem.tcp.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes")
        else:
            memory = ("memory.max", "memory.swap.max", "memory.events", "memory.events.local", "cgroup.subtree_control")
        files = {"pids": ("pids.max",), "memory": memory, "both": ("pids.max", *memory)}
        made, removed = Path.mkdir, Path.rmdir

        def mkdir(path: Path, *arguments: object, **options: object) -> None:
            made(path, *arguments, **options)
            kind = next((name for name in files if name in path.parts), "")
            folder_with(path, dict.fromkeys(files.get(kind, ()), "") | {"cgroup.procs": ""})

        def rmdir(path: Path) -> None:
            for file in [file for file in path.iterdir() if file.is_file()]:
                file.unlink()
            removed(path)

        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(Path, "rmdir", rmdir)


def test_3_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "memory").mkdir()
    FakeKernel(1, monkeypatch)
    groups = Groups(parents=(tmp_path / "pids", tmp_path / "memory"), version=1)
    group = groups.make(processes=9, memory=1 << 30, divided=True)
    pids, memory = group.folders
    assert content(pids)["pids.max"] == "9"
    told = content(memory)
    assert told["memory.limit_in_bytes"] == told["memory.memsw.limit_in_bytes"] == str(1 << 30)
    assert (told["memory.use_hierarchy"], told["memory.kmem.tcp.limit_in_bytes"]) == ("1", str(32 << 20))
    group.add(17)
    assert content(memory)["cgroup.procs"] == content(pids)["cgroup.procs"] == "17"
    part = group.part(memory=1 << 26)
    assert [folder.parent for folder in part.folders] == [memory]
    inner = folder_with(part.folders[0], {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"})
    assert part.mark() == Deaths() and content(inner)["memory.max_usage_in_bytes"] == "0"
    assert part.blame() == "nobody"
    folder_with(inner, {"memory.oom_control": "oom_kill 1\n", "memory.max_usage_in_bytes": str(30 << 20)})
    assert part.blame() == "others"
    folder_with(inner, {"memory.max_usage_in_bytes": str((1 << 26) - 4096)})
    assert part.blame() == "itself"
    assert part.blame(part.mark()) == "nobody"
    for file in ("pids", "memory"):  # the fake files of processes are read when the group is removed
        (tmp_path / file / group.folders[0].name / "cgroup.procs").write_text("")
    group.remove()
    assert not list((tmp_path / "memory").glob("palaestra-*")) and not list((tmp_path / "pids").glob("palaestra-*"))


def test_3_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "both").mkdir()
    FakeKernel(2, monkeypatch)
    group = Groups(parents=(tmp_path / "both",), version=2).make(processes=9, memory=1 << 30, divided=True)
    (folder,) = group.folders
    told = content(folder)
    assert (told["pids.max"], told["memory.max"], told["memory.swap.max"]) == ("9", str(1 << 30), "0")
    assert told["cgroup.subtree_control"] == "+memory +pids"
    group.add(17)  # a group that holds groups may hold no process itself
    assert (content(folder)["cgroup.procs"], content(folder / "server")["cgroup.procs"]) == ("", "17")
    (folder / "server" / "cgroup.procs").write_text("")
    part = group.part(memory=1 << 26)
    inner = folder_with(part.folders[0], {"memory.events": "oom 1\noom_kill 1\n", "memory.events.local": "oom 0\n"})
    assert content(inner)["memory.max"] == str(1 << 26)
    assert part.blame() == "others"
    folder_with(inner, {"memory.events.local": "oom 1\n"})
    assert part.blame() == "itself"
    assert part.blame(part.mark()) == "nobody"
    group.remove()
    assert not list((tmp_path / "both").glob("palaestra-*"))


def test_4_unseen_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lists a process of another PID namespace as 0, and to kill 0 is to kill oneself."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    folder = folder_with(tmp_path / "g", {"cgroup.procs": "0\n12\n"})
    Group(folders=(folder,), version=2).remove(wait_s=0.01)
    assert set(killed) == {12}


def test_4_groups_in_use_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "both").mkdir()
    FakeKernel(2, monkeypatch)
    groups = Groups(parents=(tmp_path / "both",), version=2)
    used = groups.make(processes=9, memory=1 << 30)
    (tmp_path / "both" / "palaestra-box-1-2").mkdir()
    (tmp_path / "both" / "palaestra-1-2").mkdir()
    sweep(groups)
    assert sorted((tmp_path / "both").iterdir()) == sorted([tmp_path / "both" / "palaestra-1-2", *used.folders])
    used.remove()
