"""Equal states become equal files: (1) whichever containers and texts are the same object; (2) what is read back is the
same state, and is written as the same bytes; (3) a run of windows that was resumed has the checkpoint of one that was
never stopped, byte for byte.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

from palaestra.training.checkpoint import unshared
from tests.commands.conftest import Command
from tests.commands.conftest import palaestra as palaestra
from tests.training.test_windows_in_training import LONG


def written(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(unshared(state), file)
    return file.getvalue()


def states() -> tuple[Any, Any]:
    shared, other = "".join(["ma", "rks"]), "".join(["mar", "ks"])
    inner = {shared: [1, 2.5, None], "weights": torch.arange(3.0)}
    first = {"a": inner, "b": (inner[shared], shared), shared: [shared]}
    second = {
        "a": {other: [1, 2.5, None], "weights": torch.arange(3.0)},
        "b": ([1, 2.5, None], "".join(["m", "arks"])),
        "marks": ["".join(["marks"])],
    }
    return first, second


def test_1_other_objects() -> None:
    first, second = states()
    assert written(first) == written(second)
    assert written(first) != written({**second, "b": ([1, 2.5, None], "mark")})


def test_2_read_back() -> None:
    first, _ = states()
    read = torch.load(io.BytesIO(written(first)), weights_only=True)
    assert (
        read["b"] == first["b"] and read["marks"] == ["marks"] and torch.equal(read["a"]["weights"], torch.arange(3.0))
    )
    assert written(read) == written(first)


def test_3_windows(tmp_path: Path, palaestra: Command, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    training = {**LONG["training"], "iterations": 6, "checkpoint_every": 2, "keep_checkpoints": 9, "threads": 1}
    Path("long.yaml").write_text(json.dumps({**LONG, "training": training}))
    Path("short.yaml").write_text(json.dumps({"rollout": LONG["rollout"]}))
    recipe = ("long.yaml", "t_ppo/method.yaml", "short.yaml")
    assert palaestra("train", *recipe, "run=whole", "--quiet").code == 0
    assert palaestra("train", *recipe, "run=cut", "training.iterations=4", "--quiet").code == 0
    assert palaestra("train", *recipe, "run=cut", "--resume", "--quiet").code == 0
    for file in Path("whole/checkpoints/step-000006").glob("[!c]*"):  # the checksums are also of the logs
        assert file.read_bytes() == (Path("cut/checkpoints/step-000006") / file.name).read_bytes(), file.name
