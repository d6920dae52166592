"""What must hold of files of weights: (1) they have the mode that the umask gives to new files, and so do those that
`save_pretrained` wrote; (2) nothing else is left in the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from palaestra.models.weight_files import open_weights, save_weights
from palaestra.testing import TinyModel


@pytest.fixture(params=[0o022, 0o027, 0o077])
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    """The mode of new files."""
    before = os.umask(request.param)
    yield 0o666 & ~request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


def test_1_saved(mode: int, tmp_path: Path) -> None:
    for number in (1.0, 2.0):  # a new file, and one that exists
        save_weights({"a": torch.full((2,), number)}, tmp_path / "a.safetensors")
        assert modes(tmp_path) == {"a.safetensors": mode}
        assert load_file(tmp_path / "a.safetensors")["a"].tolist() == [number] * 2


def test_1_save_pretrained(mode: int, tmp_path: Path) -> None:
    TinyModel().model.save_pretrained(tmp_path)
    before = set(modes(tmp_path))
    open_weights(tmp_path)
    assert set(modes(tmp_path)) == before > {"model.safetensors"} and set(modes(tmp_path).values()) == {mode}
