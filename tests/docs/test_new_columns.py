"""The worked examples of docs/columns.md: (1) a new output of the policy, read by a loss, and a column that an
estimator computes and a loss reads, train as the page says; (2) each is one file of the user's own: nothing between the
two parts changes; (3) the plan of passes that the page shows is the one that is printed; (4) where nobody gives the
column, the recipe is refused before the run, and where a part breaks its word, the run says which and how.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from palaestra.commands.cli import main
from palaestra.errors import RecipeError
from palaestra.recipe import load
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "docs" / "columns.md", (ROOT / "docs" / "columns.md").read_text(encoding="utf-8"))
SMALL = (
    "training.iterations=2",
    "rollout.tasks=2",
    "rollout.group=4",
    "warm_start.episodes=16",
    "warm_start.epochs=1",
    "evaluation.tasks=2",
    "run=out",
    "selection=[]",
    f"reward=[{ROOT / 'tests' / 'pins' / 'pay.py'}:pay]",  # what an unskilled policy gets is drawn, so that it learns
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    PAGE.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words: str) -> tuple[int, str, str]:
    """The command line in this process: exit status and both outputs."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        patched.setattr(sys, "argv", ["palaestra", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()


def palaestra(*words: str) -> str:
    status, out, err = command(*words)
    assert status == 0, out[-3000:] + err[-3000:]
    return out


@pytest.mark.parametrize(
    ("recipe", "metrics"),
    [("topk_mass.yaml", ("policy/topk_mass", "policy/topk_mass_grown")), ("surprise.yaml", ("policy/surprise",))],
)
def test_1_it_trains(folder: Path, recipe: str, metrics: tuple[str, ...]) -> None:
    palaestra("train", recipe, "--quiet", *SMALL)
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    learned = [line for line in lines if "policy/loss" in line]
    assert learned and all(name in line for line in learned for name in metrics)
    if recipe == "topk_mass.yaml":
        assert all(0 < line["policy/topk_mass"] <= 1 for line in learned)
        assert any(line["policy/topk_mass_grown"] != 0 for line in learned), "several updates: it moves"


def test_2_one_file_each() -> None:
    for name in ("topk_mass.py", "surprise.py"):
        (block,) = [block for block in PAGE.blocks("python") if block.file == name]
        assert block.text.count("@register(") + block.text.count("class ") == 2


def test_3_the_plan_is_printed() -> None:
    start = PAGE.text.index("    passes of policy main")
    shown = [line.strip() for line in PAGE.text[start:].split("\n\n")[0].splitlines()]
    printed = [line.strip() for line in palaestra("explain", "ppo").splitlines()]
    assert all(line in printed for line in shown), printed[-6:]


def test_4_a_column_that_nobody_gives(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"(?s)`topk_mass.py:spread_out` reads the column `topk_mass"):
        load(["topk_mass.yaml"], ["policies.main.policy=language"])
    with pytest.raises(RecipeError, match=r"(?s)`surprise.py:surprise_weighted` reads the column `surprise`"):
        load(["surprise.yaml"], ["advantage=grpo"])


BROKEN = {
    "wide": ("output topk_mass", "return logprobs.topk(5, dim=-1).values.exp().sum(-1)", "return logprobs.mean()"),
    "no metrics": ("loss: ", "return loss, {", "return loss  # {"),
    "unwritten": ("advantage: ", 'columns={"surprise": centered.abs()}', "columns={}"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_4_a_part_that_breaks_its_word(folder: Path, fault: str) -> None:
    said, right, wrong = BROKEN[fault]
    name = "surprise" if fault == "unwritten" else "topk_mass"
    path = folder / f"{name}.py"
    assert right in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    status, _, err = command("train", f"{name}.yaml", "--quiet", *SMALL)
    assert status == 2 and said in err and "Traceback" not in err, err[-800:]
