"""`palaestra init`: (1) it writes three files that resolve and keep the contract of environments; (2) they are those of
the README; (3) nothing is overwritten; (4) the README's commands, as they stand there, learn: from below 0.5 to
above 0.8.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palaestra.commands.init import FILES
from tests.commands.conftest import Command
from tests.docs.pages import ROOT, Page

README = Page(ROOT / "README.md", (ROOT / "README.md").read_text(encoding="utf-8"))


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


def test_2_the_files_of_the_readme(palaestra: Command) -> None:
    assert palaestra("init").code == 0
    blocks = {block.file: block.text for block in README.blocks("python", "yaml")}
    assert {name: blocks[name] for name in FILES} == {name: Path("guess", name).read_text() for name in FILES}
    assert all(len(text.splitlines()) <= 60 for text in blocks.values())


def test_3_nothing_is_overwritten(palaestra: Command) -> None:
    Path("mine").mkdir()
    Path("mine/rewards.py").write_text("mine = 1\n")
    done = palaestra("init", "mine")
    assert done.code == 2 and "mine/rewards.py\n\n  this file exists." in done.err
    assert [path.name for path in Path("mine").iterdir()] == ["rewards.py"]


@pytest.mark.slow
def test_4_the_readme_learns(empty: Path) -> None:
    README.write_files(empty)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    lines = [words for words in README.commands() if words[:2] == ["train", "recipe.yaml"]]
    assert lines == [["train", "recipe.yaml", "--smoke"], ["train", "recipe.yaml"]]
    began = time.perf_counter()
    for words in lines:
        line = [sys.executable, "-m", "palaestra", *words]
        done = subprocess.run(line, cwd=empty, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    print(f"{last}, {time.perf_counter() - began:.0f} s")
    found = re.fullmatch(r"success (\S+) -> (\S+) on 128 held-out tasks", last)
    assert found and float(found[1]) < 0.5 and float(found[2]) > 0.8
    (printed,) = re.findall(r"success \S+ -> \S+ on 128 held-out tasks", README.text)
    assert printed == last, "the README says what is seen"
