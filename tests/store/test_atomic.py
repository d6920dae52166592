"""What must hold when files are written:

(1) a file is there whole or not at all, and the previous version survives a writer that raises;
(2) a full disk leaves the previous version, leaves no temporary file, and the message has both figures;
(3) the same on a disk that really is full, for bytes, torch and safetensors, in files and in checkpoints;
(4) a writer's own error passes unchanged;
(5) a folder appears all at once and replaces an earlier one;
(6) what a killed writer left is cleaned up, and a replaced folder comes back;
(7) a place that cannot be written is a RunFolderError with the system's reason.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from palaestra.errors import RunFolderError
from palaestra.store.atomic import folder_atomic, recover, write_atomic
from palaestra.store.folder import RunFolder


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("making a small disk needs the right to mount")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:  # rule 1
    path = tmp_path / "new" / "a.txt"
    write_atomic(path, "first")
    assert path.read_text() == "first"

    def breaks(file) -> None:
        file.write(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # rule 4
        write_atomic(path, breaks)
    assert path.read_text() == "first"
    assert os.listdir(path.parent) == ["a.txt"]


def test_nothing_appears_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 1
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    write_atomic(tmp_path / "a", b"x")
    assert order == ["sync", "replace", "sync"]  # the file, its name, the folder


def test_full_disk_keeps_the_previous_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 2
    path = tmp_path / "a.txt"
    write_atomic(path, "first")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"disk is full: 4,096 bytes were needed and [\d,]+ are free") as caught:
        write_atomic(path, b"x" * 4096)
    assert "--resume" in caught.value.remedy
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_full_disk_in_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 2
    folder = RunFolder(tmp_path)
    with folder.write_checkpoint(1) as place:
        (place / "weights").write_bytes(b"one")
    with pytest.raises(RunFolderError, match="more than 3 bytes were needed"), folder.write_checkpoint(2) as place:
        (place / "weights").write_bytes(b"two")
        full()
    assert folder.checkpoint_steps() == [1]
    assert os.listdir(tmp_path / "checkpoints") == ["step-000001"]


def test_a_disk_that_really_is_full(small_disk: Path) -> None:  # rule 3
    path, big = small_disk / "a", 1_000_000
    write_atomic(path, "first")
    with pytest.raises(RunFolderError, match="disk is full: 1,000,000 bytes were needed"):
        write_atomic(path, b"x" * big)
    with pytest.raises(RunFolderError, match=r"disk is full: more than [1-9][\d,]* bytes"):
        write_atomic(path, lambda file: torch.save(torch.zeros(big), file))
    assert path.read_text() == "first"
    assert os.listdir(small_disk) == ["a"]


@pytest.mark.parametrize("how", ["torch", "safetensors"])
def test_a_checkpoint_on_a_full_disk(small_disk: Path, how: str) -> None:  # rule 3
    folder = RunFolder(small_disk)
    with folder.write_checkpoint(1) as place:
        torch.save(torch.zeros(8), place / "weights")
    with pytest.raises(RunFolderError, match="disk is full"), folder.write_checkpoint(2) as place:
        if how == "torch":
            torch.save(torch.zeros(1_000_000), place / "weights")
        else:
            save_file({"w": torch.zeros(1_000_000)}, place / "weights")
    assert os.listdir(folder.path / "checkpoints") == ["step-000001"]
    assert torch.equal(torch.load(folder.checkpoint(1) / "weights"), torch.zeros(8))


def test_a_folder_appears_all_at_once(tmp_path: Path) -> None:  # rule 5
    target = tmp_path / "deep" / "folder"
    for content in ("one", "two"):
        with folder_atomic(target) as place:
            (place / "sub").mkdir()
            (place / "sub" / "file").write_text(content)
            assert not target.exists() or (target / "sub" / "file").read_text() == "one"
        assert (target / "sub" / "file").read_text() == content
    with pytest.raises(KeyError), folder_atomic(target) as place:
        raise KeyError
    assert (target / "sub" / "file").read_text() == "two"
    assert os.listdir(target.parent) == ["folder"]


def test_leftovers_of_a_kill_are_cleaned_up(tmp_path: Path) -> None:  # rule 6
    (tmp_path / ".step-000002.77.tmp").mkdir()
    (tmp_path / ".recipe.json.77.tmp").write_text("half")
    (tmp_path / ".step-000001.old").mkdir()  # its replacement never came
    (tmp_path / "step-000003").mkdir()
    (tmp_path / ".step-000003.old").mkdir()  # its replacement came
    recover(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-000001", "step-000003"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:  # rule 7
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot be written: (Not a directory|File exists)"):
        write_atomic(tmp_path / "file" / "inside", "x")
