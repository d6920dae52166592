"""What must hold for run folders:

(1) a folder with a run is refused, and the message says what is there and three ways out;
(2) `overwrite` removes the run's files and nothing else;
(3) a folder without a run may be used, whatever else is in it;
(4) `open` wants a run, and names those nearby;
(5) only complete checkpoints count, in order of their number, and the newest are kept;
(6) JSON files are the same bytes for the same values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.errors import RunFolderError
from palaestra.store.folder import FORMER, JOURNAL, METRICS, NAMES, RECIPE, RunFolder
from palaestra.store.journal import Journal


def a_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_json(RECIPE, {"seed": 1})
    return folder


def test_an_occupied_folder_is_refused(tmp_path: Path) -> None:  # rule 1
    folder = a_run(tmp_path / "run")
    with folder.write_checkpoint(10):
        pass
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create(folder.path)
    assert "recipe.json, checkpoints" in caught.value.what
    assert "iteration 10" in caught.value.what
    assert all(way in caught.value.remedy for way in ("--resume", "run=", "--overwrite"))


def test_overwrite_removes_the_run_only(tmp_path: Path) -> None:  # rule 2
    folder = a_run(tmp_path)
    for name in NAMES:
        if not (folder / name).exists():
            folder.write(name, "old")
    (tmp_path / "notes.txt").write_text("mine")
    new = RunFolder.create(tmp_path, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == [FORMER, "notes.txt"] and new.replaces
    new.settle()
    assert os.listdir(tmp_path) == ["notes.txt"] and not new.replaces
    new.settle()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_that_cannot_begin_gives_the_former_one_back(tmp_path: Path) -> None:  # rule 2
    folder = a_run(tmp_path)
    with folder.write_checkpoint(10) as place:
        (place / "state.json").write_text("{}")
    before = contents(tmp_path)
    new = RunFolder.create(tmp_path, overwrite=True)
    new.write_json(RECIPE, {"seed": 2})
    new.write("report.html", "new")
    new.give_back()
    assert contents(tmp_path) == before and not new.replaces


@pytest.mark.parametrize("how", ["set_aside", "put_back", "settle"])
def test_a_kill_at_any_moment_of_the_replacement(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 2: each system call that changes a folder may be the last one of the process."""

    def once(last: int) -> bool:
        """Whether the process reaches its end before it is killed at this call."""
        calls, place = 0, tmp_path / f"{how}-{last}"
        folder = a_run(place)
        with folder.write_checkpoint(10) as inside:
            (inside / "state.json").write_text("{}")
        old = contents(place)
        if how != "set_aside":
            new = RunFolder.create(place, overwrite=True)
            new.write_json(RECIPE, {"seed": 2})
            with new.write_checkpoint(0) as inside:
                (inside / "state.json").write_text("new")
        fresh = {name: text for name, text in contents(place).items() if not name.startswith(FORMER)}

        def killed(call: Callable[..., object]) -> Callable[..., object]:
            def counting(*arguments: object, **options: object) -> object:
                nonlocal calls
                calls += 1
                if calls > last:
                    raise KeyboardInterrupt
                return call(*arguments, **options)

            return counting

        with monkeypatch.context() as patch:
            for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, killed(getattr(os, name)))
            try:
                if how == "set_aside":
                    RunFolder.create(place, overwrite=True)
                else:
                    getattr(new, "give_back" if how == "put_back" else how)()
            except KeyboardInterrupt:
                pass
        done = calls <= last
        after = RunFolder.open(place)
        assert contents(place) in ([old] if how == "set_aside" else [fresh, old]), last
        assert not after.replaces and not list(place.glob(".*"))
        return done

    last = 0
    while not once(last):
        last += 1
    assert last > 3


def test_a_folder_without_a_run_may_be_used(tmp_path: Path) -> None:  # rule 3
    (tmp_path / "notes.txt").write_text("mine")
    assert RunFolder.create(tmp_path).path == tmp_path
    assert RunFolder.create(tmp_path / "deep" / "new").path.is_dir()


def test_a_file_in_the_way(tmp_path: Path) -> None:  # rule 3
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="File exists"):
        RunFolder.create(tmp_path / "file")


def test_open_wants_a_run(tmp_path: Path) -> None:  # rule 4
    a_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    for name, fault in (("empty", "no run is there"), ("absent", "no such folder")):
        with pytest.raises(RunFolderError, match=fault) as caught:
            RunFolder.open(tmp_path / name)
        assert caught.value.options == (str(tmp_path / "good"),)
    assert RunFolder.open(tmp_path / "good").read_json(RECIPE) == {"seed": 1}


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:  # rule 5
    folder = a_run(tmp_path)
    assert folder.latest_checkpoint() is None
    for step in (20, 3, 1_000_000):
        with folder.write_checkpoint(step):
            pass
    killed = folder / "checkpoints" / ".step-000030.9.tmp"
    killed.mkdir()
    assert folder.checkpoint_steps() == [3, 20, 1_000_000]
    folder.keep_checkpoints(2)
    assert folder.checkpoint_steps() == [20, 1_000_000]
    folder.keep_checkpoints(0)
    assert folder.latest_checkpoint() == folder.checkpoint(1_000_000)
    RunFolder.open(tmp_path)
    assert not killed.exists()


def test_equal_values_are_equal_bytes(tmp_path: Path) -> None:  # rule 6
    folder = RunFolder(tmp_path)
    folder.write_json("a", {"b": 0.1, "a": [1, 2], "c": None, "p": "x"})
    folder.write_json("b", {"p": Path("x"), "c": float("nan"), "a": torch.tensor([1, 2]), "b": np.float64(0.1)})
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    with pytest.raises(TypeError, match="object"):
        folder.write_json("c", {"x": object()})


def test_a_damaged_json_file_is_named(tmp_path: Path) -> None:  # rule 6
    folder = RunFolder(tmp_path)
    folder.write(METRICS, "{")
    with pytest.raises(RunFolderError, match=METRICS):
        folder.read_json(METRICS)


@pytest.mark.parametrize("line", ["{}", '{"plan": "x", "plays": []}', '{"plan": 1, "plays": [{}]}', '{"group": "a"}'])
def test_a_damaged_line_of_a_journal_is_left_out(line: str, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(line + "\n")
    assert Journal(tmp_path).left_out == 1
