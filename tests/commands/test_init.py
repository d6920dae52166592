"""`palaestra init`: (1) it writes three files that resolve and keep the contract of environments; (2) they are those of
the tutorial; (3) nothing is overwritten; (4) training on them learns, from below 0.5 to above 0.8.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.commands.init import FILES
from tests.commands.conftest import Command
from tests.docs.pages import ROOT, Page

PLACE = ROOT / "docs" / "tutorials" / "environment.md"
TUTORIAL = Page(PLACE, PLACE.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_1_what_it_writes(palaestra: Command) -> None:
    done = palaestra("init", "mine")
    assert done.code == 0 and done.out[-1] == "Train it: palaestra train mine/recipe.yaml"
    assert {path.name for path in Path("mine").iterdir()} == set(FILES)
    assert palaestra("explain", "mine").code == 0
    assert palaestra("envs", "--check", "mine/guess.py:Guess").code == 0
    assert palaestra("train", "mine/recipe.yaml", "--smoke", "--quiet").code == 0


def test_2_the_files_of_the_tutorial(palaestra: Command) -> None:
    assert palaestra("init").code == 0
    blocks = {block.file: block.text for block in TUTORIAL.blocks("python", "yaml")}
    assert {name: blocks[name] for name in FILES} == {name: Path("guess", name).read_text() for name in FILES}
    assert all(len(text.splitlines()) <= 60 for text in blocks.values())


def test_3_nothing_is_overwritten(palaestra: Command) -> None:
    Path("mine").mkdir()
    Path("mine/rewards.py").write_text("mine = 1\n")
    done = palaestra("init", "mine")
    assert done.code == 2 and "mine/rewards.py\n\n  this file exists." in done.err
    assert [path.name for path in Path("mine").iterdir()] == ["rewards.py"]


@pytest.mark.slow
def test_4_it_learns(empty: Path, palaestra: Command) -> None:
    assert palaestra("init", ".").code == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "palaestra", "train", "recipe.yaml", "--quiet"]
    done = subprocess.run(line, cwd=empty, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"success (\S+) -> (\S+) on 128 held-out tasks", done.stdout.splitlines()[-1])
    assert found and float(found[1]) < 0.5 and float(found[2]) > 0.8
