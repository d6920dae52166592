"""Files of one's own beside a recipe: (1) they are found from the recipe's folder, whatever the working folder, and may
import their neighbors; also in worker processes, by `eval`, `play` and `--resume` from yet another folder, and by
`compare`; (2) in a recipe the recipe's folder comes first, in an override the working folder; (3) a layer over the
recipe keeps the file that the recipe means; (4) a file that is not there is said to be in none of these folders; (5)
two files whose neighbors have one name are refused; (6) a kept warm start is made anew when a neighbor changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.recipe import load
from tests.commands.conftest import SMALL, Command

WORLD = """
from {neighbor} import PRICE, Mood

from palaestra.testing import EchoEnvironment


class World(EchoEnvironment):
    def step(self, actions):
        from {neighbor} import late

        return late(super().step(actions), Mood(PRICE))


def paid(table, *, share: float = 1.0):
    return table["reward"] * share * PRICE
"""
NEIGHBOR = """
from dataclasses import dataclass, replace

PRICE = {price}


@dataclass
class Mood:
    price: float


def late(result, mood):
    return replace(result, info={{**result.info, "price": mood.price}})
"""
LAST = "on 4 tasks of the split eval"  # the environment does not tell its contents


def put(folder: Path, *, price: float, neighbor: str = "shared_things") -> Path:
    """A recipe with its files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "world.py").write_text(WORLD.format(neighbor=neighbor))
    (folder / f"{neighbor}.py").write_text(NEIGHBOR.format(price=price))
    own = {"environment": {"world.py:World": {"turns": 2}}, "reward": ["world.py:paid"]}
    (folder / "recipe.yaml").write_text(json.dumps(SMALL | own))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder beside that of the recipe, `there`; what is imported from there is forgotten afterwards."""
    put(tmp_path / "there", price=3.0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = list(sys.path)
    yield tmp_path / "here"
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("workers", [[], ["rollout.workers=1", "rollout.worker_kind=process"]])
def test_1_train_evaluate_play_and_resume(
    elsewhere: Path, palaestra: Command, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = palaestra("train", "../there", "--quiet", *workers)
    assert done.code == 0 and done.out[-1].endswith(LAST), done.err
    line = json.loads(Path("runs/small/evaluations.jsonl").read_text().splitlines()[-1])
    assert line["eval/world.py:World/info/price"] == 3.0
    monkeypatch.chdir(elsewhere.parent)
    for command in (("eval",), ("play",), ("explain",), ("train", "--resume", "training.iterations=3")):
        done = palaestra(command[0], "here/runs/small", *command[1:])
        assert done.code == 0, done.err


@pytest.mark.slow
def test_1_compare_and_a_process_of_its_own(elsewhere: Path) -> None:
    (elsewhere / "rloo.yaml").write_text("advantage: rloo")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "palaestra", "compare", "../there/recipe.yaml", "rloo.yaml", "--seeds", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "eval/world.py:World/success" in done.stdout, done.stderr


def test_2_which_folder_comes_first(elsewhere: Path) -> None:
    put(elsewhere, price=5.0, neighbor="shared_elsewhere")
    written = load(["../there/recipe.yaml"])
    assert written.settings.environment.file == str(elsewhere.parent / "there/world.py")
    overridden = load(["../there/recipe.yaml"], ["environment=world.py:World"])
    assert overridden.settings.environment.file == str(elsewhere / "world.py")
    (elsewhere / "world.py").unlink()
    assert load(["../there/recipe.yaml"], ["reward=world.py:paid"]).settings.reward[0].file.endswith("there/world.py")


def test_3_a_layer_over_the_recipe(elsewhere: Path) -> None:
    Path("longer.yaml").write_text("extends: ../there/recipe.yaml\nenvironment: {world.py:World: {turns: 3}}\n")
    (environment,) = [part for part in load(["longer.yaml"]).parts if part.path == "environment"]
    assert (environment.part.file, environment.values["turns"]) == (str(elsewhere.parent / "there/world.py"), 3)


def test_4_no_such_file(elsewhere: Path, palaestra: Command) -> None:
    done = palaestra("explain", "../there", "loss=absent.py:f")
    assert done.code == 2
    assert "`absent.py:f` cannot be loaded: no file absent.py in ../there or the working folder." in done.err


def test_5_neighbors_of_one_name(elsewhere: Path, palaestra: Command) -> None:
    put(elsewhere, price=5.0)
    done = palaestra("explain", "../there", "reward=world.py:paid", "--trust")
    assert done.code == 2 and "Traceback" not in done.err
    assert "here/world.py" in done.err and "it imports `shared_things` from its folder" in done.err
    assert "there/shared_things.py" in done.err


def test_6_clones(elsewhere: Path, palaestra: Command) -> None:
    command = ("train", "../there", "--quiet", "--overwrite", "warm_start={episodes: 4, epochs: 1, keep: clones}")
    kept = []
    for text in ("", "", "# another\n"):
        file = elsewhere.parent / "there/shared_things.py"
        file.write_text(file.read_text() + text)
        assert palaestra(*command).code == 0
        kept.append(len(list(Path("clones").iterdir())))
    assert kept == [1, 1, 2]
