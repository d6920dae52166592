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
from pathlib import Path

import numpy as np
import pytest
import torch

from palaestra.errors import RunFolderError
from palaestra.store.folder import METRICS, NAMES, RECIPE, RunFolder


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
    RunFolder.create(tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["notes.txt"]


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
