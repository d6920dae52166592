"""`--smoke`: (1) the rule: numbers of sections become small, and nothing that is small already; parts say how they are
small; rows are paid differently; (2) a section `smoke` is laid over that, and overrides win over both; (3) the run
lies below a name of its own and replaces the smoke before; (4) `explain` shows what is changed; (5) some recipes of
all kinds run and make an update, so do those that the last commit changed, and, slowly, every recipe.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from palaestra.catalogue import systems
from palaestra.errors import RecipeError
from palaestra.recipe import load, packaged
from palaestra.recipe.sources import COMPLETE, PLAYED
from tests.commands.conftest import TINY, Command
from tests.vision import instead

ROOT = Path(__file__).parents[2]
SOME = ["gigpo", "sac", "dpo", "grpo_roc", "teams/solver_verifier.yaml", "quickstart.yaml"]
MOST = 6  # changed recipes that the fast tests run
LARGE = {
    "environment": "echo",
    "policies": {"main": {"policy": {"language": {"hidden": 64, "heads": 1}}}},
    "warm_start": {"episodes": 100, "keep": "clones"},
    "rollout": {"tasks": 1, "group": 64},
    "evaluation": {"every": 5},
}
LAST = re.compile(r"\d+ (held-out tasks|tasks of the split eval|tasks, \d+ of them also trained|episodes of one task)")


def test_1_the_rule() -> None:
    plain, smoke = load([LARGE]).settings, load([LARGE], smoke=True).settings
    assert (plain.rollout.group, smoke.rollout.group, smoke.rollout.tasks) == (64, 4, 1)
    assert (smoke.training.iterations, smoke.evaluation.tasks, smoke.evaluation.every) == (2, 4, None)
    assert smoke.warm_start is not None
    assert (smoke.warm_start.episodes, smoke.warm_start.epochs, smoke.warm_start.keep) == (8, 1, None)
    options = smoke.policies["main"].policy.options
    assert (options["hidden"], options["heads"], options["layers"]) == (32, 1, 1)
    assert [part.name for part in smoke.reward] == ["environment", "palaestra.testing.rewards:varied"]


def test_2_the_section_and_overrides() -> None:
    own = LARGE | {"smoke": {"rollout": {"group": 6, "tasks": 3}, "reward": ["outcome"]}}
    assert load([own]).settings.rollout.tasks == 1, "only a smoke reads it"
    recipe = load([own], ["rollout.group=9", "training.iterations=7"], smoke=True)
    settings = recipe.settings
    assert (settings.rollout.tasks, settings.rollout.group, settings.training.iterations) == (3, 9, 7)
    assert [part.name for part in settings.reward] == ["outcome"]
    with pytest.raises(RecipeError, match="`smoke` takes keys of a recipe, found `2`"):
        load([LARGE | {"smoke": 2}])


def test_3_the_run_folder(recipe: Path, palaestra: Command) -> None:
    for _ in range(2):
        done = palaestra("train", recipe, "--smoke", "--quiet")
        assert done.code == 0 and done.out[-1].endswith("on 4 tasks of the split eval")
    assert {path.name for path in Path("runs").iterdir()} == {"smoke"} and Path("runs/smoke/small/report.html").exists()
    assert palaestra("train", recipe, "--smoke", "--quiet", "run=runs/mine").code == 0
    assert palaestra("train", recipe, "--smoke", "--quiet", "run=runs/mine").code == 2, "a named folder is not replaced"


def test_4_explain(recipe: Path, palaestra: Command) -> None:
    layer = {"policies": {"main": {"policy": TINY}}, "training": {"iterations": 30}}
    Path("language.yaml").write_text(json.dumps(layer))
    done = palaestra("explain", recipe, "language.yaml", "--smoke")
    changed = done.out[done.out.index("the smoke changes") :]
    assert done.code == 0 and "  training.iterations 30 -> 2" in changed
    assert any(line.split()[:4] == ["training.iterations", "2", "--smoke", "(was"] for line in done.out)
    assert not any("hidden" in line for line in changed), "it is small already"
    assert not Path("runs").exists()
    assert palaestra("train", recipe, "--smoke", "--quiet").code == 0
    assert "  training.iterations 2 -> 1" not in palaestra("explain", "runs/smoke/small", "--smoke").out


def commands() -> list[list[str]]:
    """One for each system and for each recipe of `recipes/`."""
    every = [["run" if each.recipe is None else "train", each.name] for each in systems() if not each.variant]
    files = {name: path for name, path in packaged().items() if path.is_relative_to(ROOT / "recipes")}
    return [*every, *(["train", name] for name in files), *(["run", name] for name in played())]


def played() -> list[str]:
    return [each.name for each in systems() if each.recipe and each.played]


def test_5_every_system_has_one() -> None:
    lacking = [each.name for each in systems() if not each.variant and not (each.recipe or each.played)]
    assert not lacking, f"neither {COMPLETE} nor {PLAYED}"
    assert len(commands()) > 130 and ["run", "behavior_cloning"] in commands()


def changed() -> list[str]:
    """Systems and recipes of which the last commit, or the working tree, changes a file; none without git."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", "HEAD~1"]
    files = subprocess.run(command, capture_output=True, text=True).stdout.splitlines() if shutil.which("git") else []
    places = [re.match(r"palaestra/systems/(\w+)/|recipes/(.+\.yaml)", file) for file in files]
    return sorted({place[1] or place[2] for place in places if place})


QUICK = {*SOME, *changed()[:MOST]}


@pytest.mark.smoke
@pytest.mark.timeout(1800)  # pretrained models play many turns
@pytest.mark.parametrize(
    "words",
    [words if words[1] in QUICK else pytest.param(words, marks=pytest.mark.slow) for words in commands()],
    ids=" ".join,
)
def test_5_every_recipe(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palaestra: Command) -> None:
    monkeypatch.chdir(tmp_path)
    done = palaestra(*words, *instead(words[1], tmp_path / "model"), "--smoke", "--quiet")
    assert done.code == 0, done.err
    assert LAST.search(done.out[-1]) and not any("no update" in line for line in done.out)
