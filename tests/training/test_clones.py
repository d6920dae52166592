"""Clones that runs share: (1) a run that takes kept clones is the same bit for bit as one that clones by itself;
(2) methods share them, and another seed, model or warm start does not; (3) a file that cannot be read is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import palaestra.training.start as start
from palaestra.errors import CheckpointError
from palaestra.recipe import load
from palaestra.training.clones import Clones
from tests.training.conftest import ECHO, final_weights

Run = Callable[..., Path]
SHORT = "training.iterations=1"


def test_1_the_same_as_cloned_anew(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = f"warm_start.keep={tmp_path / 'clones'}"
    alone, first = echo("alone", SHORT), echo("first", SHORT, keep)
    assert len(list((tmp_path / "clones").iterdir())) == 1
    monkeypatch.setattr(start, "warm_start", None)  # a second run has no need of it
    second = echo("second", SHORT, keep)
    assert final_weights(alone) == final_weights(first) == final_weights(second)


@pytest.mark.parametrize(
    ("override", "shared"),
    [
        ("advantage=rloo", True),
        ("rollout.group=8", True),
        ("training.iterations=9", True),
        ("seed=4", False),
        ("warm_start.epochs=9", False),
        ("policies.main.policy.language.hidden=64", False),
        ("environment.echo.turns=3", False),
        ("strategy=dynamic_sampling", False),
    ],
)
def test_2_what_begins_alike(override: str, shared: bool, tmp_path: Path) -> None:
    paths = [Clones(str(tmp_path), load([ECHO], overrides).settings).path for overrides in ([], [override])]
    assert (paths[0] == paths[1]) is shared


def test_3_a_damaged_file_is_named(echo: Run, tmp_path: Path) -> None:
    settings = load([ECHO], []).settings
    path = Clones(str(tmp_path / "clones"), settings).path
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"(?s)holds no clones.*Remove the file"):
        echo("run", SHORT, f"warm_start.keep={tmp_path / 'clones'}")
