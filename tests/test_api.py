"""What must hold of the Python interface: (1) `import palaestra` loads no torch, and offers the names; (2) classes and
functions stand for parts, also as keys with options; (3) a run gives its tables, episodes, policies, files and curves;
(4) an evaluation uses the trained weights, and changed keys; (5) mistakes get one clear error; (6) runs are compared;
(7) what is written in a notebook works in worker processes, and its name is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import palaestra
from palaestra.algebra import standardize, total_return
from palaestra.data import Observation, StepResult
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.errors import PalaestraError, RecipeError, RunFolderError, UnknownName
from palaestra.systems.gigpo import gigpo
from tests.messages import told

SMALL = {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}
QUICK = {
    "rollout": {"tasks": 4, "group": 4, "response_tokens": 4},
    "training": {"iterations": 2},
    "evaluation": {"tasks": 8},
    "quiet": True,
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Parity:
    """Say whether a number is even or odd."""

    agents = ("player",)

    def tasks(self, split, n, seed):
        return seeded_tasks("parity", {}, split, n, seed)

    def reset(self, task):
        self.number = task.seed // 2 % 1000
        return StepResult(observations={"player": Observation(text=f"number {self.number}", legal=["even", "odd"])})

    def step(self, actions):
        right = actions["player"].value == ("odd" if self.number % 2 else "even")
        info = {"success": right}
        return StepResult(observations={}, rewards={"player": float(right)}, terminated={"player"}, info=info)

    def close(self):
        pass


def centered(table, *, size: float = 1.0):
    return size * standardize(total_return(table), by=table.key("group"), unit=table.unit("trajectory"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("runs") / "parity"
    options = {"environment": Parity, "advantage": {centered: {"size": 2.0}}, "run": place}
    return palaestra.train(model=SMALL, **options, **QUICK)


def test_1_no_torch() -> None:
    code = "import sys, palaestra; assert 'torch' not in sys.modules and 'train' in dir(palaestra)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert callable(palaestra.train)
    with pytest.raises(AttributeError, match="trian"):
        palaestra.trian


def test_2_objects_as_parts(run) -> None:
    chosen = run.recipe.settings.advantage[0]
    assert chosen.part.target is centered and chosen.options == {"size": 2.0}
    assert run.recipe.settings.environment.part.target is Parity
    recipe = palaestra.load_recipe("setups/rooms-tiny.yaml", advantage=gigpo)
    assert recipe.settings.advantage[0].name == "gigpo"


def test_2_layers_and_keys(tmp_path) -> None:
    recipe = palaestra.load_recipe("setups/rooms-tiny.yaml", {"rollout": {"group": 3}}, rollout={"tasks": 2})
    assert (recipe.settings.rollout.group, recipe.settings.rollout.tasks) == (3, 2)
    assert palaestra.load_recipe("setups/rooms-tiny.yaml", run=tmp_path / "x").settings.run == str(tmp_path / "x")


def test_3_what_a_run_gives(run, tmp_path) -> None:
    assert run.result.startswith(("iteration 0", "no update")) and run.result in str(run)
    metrics = run.metrics()
    assert list(metrics.index) == [1, 2] and metrics["environment_steps"].tolist() == [16, 32]
    assert list(run.metrics("evaluations").index) == [0, 2] and "time/update" in run.metrics("timings")
    kept = run.trajectories()
    assert kept and len(run.trajectories(step=2)) < len(kept)
    assert run.trajectories(name="train") != kept and not run.trajectories(step=17)
    assert sum(p.numel() for p in run.policy().module.parameters()) > 1000
    assert (run.export(tmp_path / "out") / "model.safetensors").is_file()
    run.plot("Reward", "Turns").savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert len(run.plot("Reward").axes) == 1 < len(run.plot().axes)


def test_4_trained_weights(run) -> None:
    again = palaestra.Run(run.folder)
    assert again.evaluate(evaluation={"tasks": 5}).evaluation.n == 5
    first, second = (again.evaluate().evaluation for _ in range(2))
    assert first == second and first.n == 8
    assert again.evaluate(policy="random", evaluation={"tasks": 64}).evaluation.success.value > 0.3
    first, *_ = again.policy().module.state_dict().values()
    assert torch.equal(first, next(iter(again.policy("main").module.state_dict().values())))
    evaluated = palaestra.evaluate("setups/rooms-tiny.yaml", policy="expert", evaluation={"tasks": 4})
    assert evaluated.evaluation.success.value == 1.0 and "4 tasks" in str(evaluated)


@pytest.mark.parametrize(
    ("call", "kind", "word"),
    [
        (lambda: palaestra.train(advantage="grpo"), RecipeError, "environment"),
        (lambda: palaestra.load_recipe("setups/rooms-tiny.yaml", rollout={"gruop": 3}), RecipeError, "gruop"),
        (lambda: palaestra.load_recipe("setups/rooms-tiny.yaml", advantage={3: {}}), RecipeError, "`3`"),
        (lambda: palaestra.Run("nowhere"), RunFolderError, "nowhere"),
    ],
)
def test_5_mistakes(call, kind: type[PalaestraError], word: str) -> None:
    with told(kind, word):
        call()


def test_5_unknown_names(run) -> None:
    for call in (lambda: run.plot("Rewrad"), lambda: run.policy("mian"), lambda: run.metrics("evals")):
        with told(UnknownName, "no such"):
            call()


def test_6_compare(tmp_path) -> None:
    layers = {"environment": {"echo": {"turns": 2}}, "policies": {"main": {"policy": {"network": {"hidden": [8]}}}}}
    quick = QUICK | {"training": {"iterations": 2, "threads": 1}}
    runs = [
        palaestra.train(layers, advantage=name, seed=seed, name=name, run=tmp_path / f"{name}-{seed}", **quick)
        for name in ("grpo", "rloo")
        for seed in (1, 2, 3)
    ]
    table = palaestra.compare(runs)
    assert list(table.index) == ["grpo", "rloo"] and list(table["seeds"]) == [3, 3]
    assert table.attrs["metric"] == "eval/echo/success" and table.attrs["reference"] == "grpo"
    last = [run.metrics("evaluations")["eval/echo/success"].iloc[-1] for run in runs]
    assert table["final"].tolist() == pytest.approx([sum(last[:3]) / 3, sum(last[3:]) / 3])
    assert table.loc["rloo", "difference"] == pytest.approx(table["final"]["rloo"] - table["final"]["grpo"])
    assert table["verdict"].isna().tolist() == [True, False]
    named = palaestra.compare({"b": runs[3:], "a": [run.folder for run in runs[:3]]}, reference="a")
    assert list(named.index) == ["b", "a"] and named.loc["b", "final"] == table.loc["rloo", "final"]
    with pytest.raises(UnknownName, match="no arm is called `c`"):
        palaestra.compare(runs, reference="c")
    with pytest.raises(RunFolderError, match="same seed"):
        palaestra.compare({"a": [runs[0], runs[0]]})


NOTEBOOK = """
import json, pathlib
import palaestra
from palaestra.data import Observation, StepResult
from palaestra.envs.kit.panels import seeded_tasks

class Note:
    def __init__(self, text):
        self.text = text

class Parity:
    agents = ("player",)
    def tasks(self, split, n, seed):
        return seeded_tasks("parity", {}, split, n, seed)
    def reset(self, task):
        self.note = Note(f"number {task.seed // 2 % 1000}")
        return StepResult(observations={"player": Observation(text=self.note.text, legal=["even", "odd"])})
    def step(self, actions):
        return StepResult(observations={}, rewards={"player": 1.0}, terminated={"player"}, info={"success": True})
    def close(self):
        pass

def correct(completions, answer, **columns):
    return [float(a in c) for c, a in zip(completions, answer, strict=True)]

small = {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}
quick = {"rollout": {"tasks": 2, "group": 2, "response_tokens": 4, "workers": 1, "worker_kind": "process"},
         "training": {"iterations": 1, "max_failed": 0.0}, "evaluation": {"tasks": 2}, "quiet": True}
run = palaestra.train(environment=Parity, model=small, name="parity", **quick)
found = run.metrics("evaluations")
assert found["eval/Parity/failed"].tolist() == [0, 0] and found["eval/Parity/success"].tolist() == [1, 1], found
pathlib.Path("words.jsonl").write_text("\\n".join(json.dumps({"prompt": f"Say {w}.", "answer": w})
                                             for w in ("yes", "no", "maybe", "never")))
data = {"dataset": {"path": "words.jsonl", "reward": correct}}
run = palaestra.train(environment=data, model=small, name="words", **quick | {"evaluation": {"tasks": 1}})
assert run.metrics("evaluations")["eval/dataset/failed"].tolist() == [0, 0]
print("fine")
"""


@pytest.mark.slow
def test_7_a_notebook_with_worker_processes(tmp_path) -> None:
    script = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert script.stdout.endswith("fine\n"), script.stdout + script.stderr


def test_the_package_is_typed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import palaestra\n\nreveal_type(palaestra.train)\nreveal_type(palaestra.Run)\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "-> palaestra.api.Run" in found.stdout, found.stdout + found.stderr
