"""The worked example of CONTRIBUTING.md: (1) its files, added to a copy of the tree, make a system that is listed,
trains, meets its golden numbers and all rules of the house; (2) they lie in one folder, and no other file changes;
(3) the rules are tried: they find what the example would leave out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "CONTRIBUTING.md", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
FILES = {block.file: block.text for block in PAGE.blocks("python", "yaml") if block.file is not None}
FOLDER = "palaestra/systems/signs"
SMALL = "training.iterations=1 rollout.tasks=2 warm_start.episodes=8 warm_start.epochs=1 evaluation.tasks=2"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the example in it."""
    root = tmp_path_factory.mktemp("checkout")
    skipped = shutil.ignore_patterns("images", ".*", "__pycache__")
    for name in ("palaestra", "recipes", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, root / path.name)
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def run(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_1_it_is_listed(tree: Path) -> None:
    assert "palaestra train signs" in run(tree, "palaestra", "methods", "signs")
    assert "signs: not run yet" in run(tree, "benchmarks.studies", "--show", "signs")


@pytest.mark.smoke
def test_1_it_trains(tree: Path) -> None:
    assert "success" in run(tree, "palaestra", "train", "signs", "--quiet", *SMALL.split())


def passed(tree: Path, *words: str) -> int:
    """How many tests pass. Raises: AssertionError, if one fails or none is selected."""
    printed = run(tree, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words)
    return int(re.findall(r"(\d+) passed", printed)[-1])


@pytest.mark.slow
def test_1_it_passes_the_tests_of_every_system(tree: Path) -> None:
    every = ["tests/parts/test_golden.py", "tests/parts/test_every_estimator.py", "tests/parts/test_bad_input.py"]
    assert passed(tree, *every, FOLDER, "-k", "signs") >= 4


@pytest.mark.slow
def test_1_it_keeps_the_rules_of_the_house(tree: Path) -> None:
    assert passed(tree, "tests/house") >= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "test"),
    [('reads=(), writes=("advantage",), ', "test_reads.py"), ("parts: {advantage: [signs]", "test_parts.py")],
)
def test_3_the_rules_find_what_is_left_out(tree: Path, part: str, test: str) -> None:
    (path,) = (tree / name for name, text in FILES.items() if part in text and name.startswith(FOLDER))
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(part, "parts: {" if part.startswith("parts") else ""), encoding="utf-8")
    try:
        with pytest.raises(AssertionError, match="signs"):
            passed(tree, f"tests/house/{test}")
    finally:
        path.write_text(whole, encoding="utf-8")


def test_2_nothing_else_changes() -> None:
    assert {str(Path(name).relative_to(FOLDER)) for name in FILES} == {
        "system.yaml", "__init__.py", "method.yaml", "recipe.yaml", "golden.yaml", "test_signs.py", "studies/signs.yaml"
    }  # fmt: skip
