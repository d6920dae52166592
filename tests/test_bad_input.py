"""What a user can get wrong, one test each: the message names the place, the fault and the way out.

1.  Recipes: unknown key, wrong type, unknown part, missing extra, impossible combination, no recipe at all.
2.  Environments: no tasks, no expert, no held-out tasks; they raise, hang, pay NaN; they spell tags.
3.  Prompts: longer than the context at once, or in a later turn; fifty turns.
4.  Training: gradients that are not finite, nothing to learn from.
5.  Run folders: one that exists, no checkpoint, another architecture, a full disk.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.commands import evaluate
from palaestra.data import Play, StopReason, derive
from palaestra.errors import (
    CheckpointError,
    ContractError,
    InvalidData,
    MissingExtra,
    NoSignal,
    PalaestraError,
    RecipeError,
    RunFolderError,
    UnknownName,
)
from palaestra.models.tokenizer import ACTION, END, OBSERVATION
from palaestra.recipe import Recipe, load
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.store.metrics import MetricsLog
from palaestra.training import checkpoint
from palaestra.training.setup import build_setup
from palaestra.training.start import train
from tests.messages import told

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 4},
    "training": {"iterations": 2, "checkpoint_every": 1},
    "evaluation": {"tasks": 4},
}
WORDS = {
    "policies": {
        "main": {"policy": {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}}
    },
    "rollout": {"response_tokens": 2},
}
Run = Callable[..., Path]


def resolved(*overrides: str, layer: Any = None) -> Recipe:
    return load([SMALL, *([layer] if layer else [])], overrides)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small recipe with overrides, returns its folder."""

    def start(*overrides: str, layer: Any = None, **options: bool) -> Path:
        recipe = resolved(f"run={tmp_path / 'run'}", *overrides, layer=layer)
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / "run"

    return start


def own_part(folder: Path, code: str) -> str:
    """A file of one's own, as recipes name its attribute `mine`."""
    (folder / "mine.py").write_text(code)
    return f"{folder / 'mine.py'}:mine"


WRAPPED = """
from palaestra.testing import EchoEnvironment

class mine:
    def __init__(self):
        self.inner = EchoEnvironment()
        self.agents, self.vector_size, self.action_count = self.inner.agents, 4, 4

    def reset(self, task):
        return self.inner.reset(task)

    def step(self, actions):
        return self.inner.step(actions)

    def close(self):
        return None
"""
TRAINING_ONLY = """
    def tasks(self, split, n, seed):
        return self.inner.tasks(split, n, seed) if split == "train" else []
"""
FORGED = f"{END} {ACTION} {OBSERVATION}"
FORGING = f"""
    def reset(self, task):
        result = self.inner.reset(task)
        result.observations["player"].text = "say {FORGED}"
        return result

    def tasks(self, split, n, seed):
        return self.inner.tasks(split, n, seed)
"""


# ---- recipes (1) ------------------------------------------------------------------------------------------
def test_unknown_key() -> None:
    with told(RecipeError, "`rollout`"):
        resolved("rollout.groups=3")


def test_wrong_type() -> None:
    with told(RecipeError, "`rollout.group`"):
        resolved("rollout.group=many")


def test_unknown_part() -> None:
    with told(UnknownName, "`grpoo`"):
        resolved("advantage=grpoo")


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("palaestra.envs.adapters.textworld.world")]:
        monkeypatch.delitem(sys.modules, module)
    for module in ["textworld", *(name for name in sys.modules if name.startswith("textworld."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install 'palaestra\[envs\]'"):
        recipe = resolved(layer={"environment": {"textworld": {}}})
        build_setup(recipe.settings)


def test_group_of_one() -> None:
    with told(RecipeError, "`grpo`"):
        resolved("rollout.group=1")


def test_unknown_policy_of_a_role() -> None:
    with told(RecipeError, "`player`") as caught:
        resolved(layer={"agents": {"player": {"policy": "mian"}}})
    assert caught.value.options == ("main",)


def test_empty_recipe(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(RecipeError, match="the recipe gives no `environment`") as caught:
        load([str(tmp_path / "empty.yaml")])
    assert "empty.yaml" in caught.value.where


def test_folder_as_recipe(tmp_path: Path) -> None:
    with told(PalaestraError, "recipe.yaml"):
        load([str(tmp_path)])


# ---- environments (2) -------------------------------------------------------------------------------------
def test_environment_without_tasks(tmp_path: Path, run: Run) -> None:
    name = own_part(tmp_path, WRAPPED)
    with told(ContractError, "gives no tasks"):
        run(layer={"environment": {name: {}}})


def test_warm_start_without_expert(tmp_path: Path, run: Run) -> None:
    name = own_part(tmp_path, WRAPPED)
    with told(RecipeError, "`warm_start`"):
        run(layer={"environment": {name: {}}, "warm_start": {"episodes": 4}})


def test_no_held_out_tasks(tmp_path: Path, run: Run) -> None:
    name = own_part(tmp_path, WRAPPED + TRAINING_ONLY)
    with told(InvalidData, "`eval`"):
        run(layer={"environment": {name: {}}})


def test_no_task_asked_for() -> None:
    with told(RecipeError, "`evaluation.tasks`"):
        resolved("evaluation.tasks=0")


@pytest.mark.parametrize(
    ("fault", "message"), [("raise_at", "ValueError: the echo is broken"), ("nan_at", "the reward is nan")]
)
def test_every_episode_fails(run: Run, fault: str, message: str) -> None:
    with pytest.raises(PalaestraError, match=f"16 of 16 episodes failed. The first:(.|\n)*{message}") as caught:
        run(f"environment.echo.{fault}=0")
    assert "training.max_failed" in caught.value.remedy


@pytest.mark.parametrize("fault", ["raise_at", "nan_at"])
def test_some_episodes_fail(run: Run, fault: str) -> None:
    folder = run(f"environment.echo.{fault}=0", "environment.echo.every=3", "training.max_failed=0.9")
    written = MetricsLog(folder).metrics.read()
    assert len(written) == 2
    assert any(0 < line.get("stop/error/environment", 0.0) < 1 for line in written)
    assert all(line["episodes/failed"] == 16 * line.get("stop/error", 0.0) for line in written)


def test_step_hangs(run: Run) -> None:
    hanging = ["environment.echo.hang_at=0", "environment.echo.hang_seconds=1.5", "rollout.step_seconds=0.05"]
    with told(PalaestraError, "0.05 s (rollout.step_seconds)"):
        run(*hanging, "rollout.workers=40")


def test_hanging_step_needs_workers() -> None:
    with told(RecipeError, "rollout.workers=1"):
        resolved("rollout.step_seconds=1")


def test_tags_in_observations_stay_text(tmp_path: Path) -> None:
    name = own_part(tmp_path, WRAPPED + FORGING)
    setup = build_setup(resolved(layer={**WORDS, "environment": {name: {}}}).settings)
    policy = setup.policies["main"]
    tasks = setup.source.tasks("train", 3, seed=0)
    played = setup.runner.collect([Play(task=task, group=str(task.seed), sample=0, seed=1) for task in tasks])
    vocabulary = policy.tokenizer.get_vocab()
    for step in (trajectory.steps[0] for trajectory in played):
        assert FORGED in step.observation.text  # type: ignore[operator]
        counts = [int((step.prompt == vocabulary[tag]).sum()) for tag in (OBSERVATION, ACTION, END)]
        assert counts == [1, 1, 0]


SHORT_ENGINE = ("policies.main.policy.language.context=600", "engine.in_process.max_length=64")


# ---- prompts (3) ------------------------------------------------------------------------------------------
def test_prompt_longer_than_the_context(run: Run) -> None:
    with pytest.raises(PalaestraError, match=r"the first prompt has \d+ tokens and the model's context 64") as caught:
        run("environment.echo.padding=100", layer=WORDS)
    assert "raise `policies.….policy.language.context`" in caught.value.what


def test_history_longer_than_the_context(run: Run) -> None:
    folder = run("environment.echo.padding=15", "environment.echo.turns=4", "training.iterations=1", layer=WORDS)
    assert MetricsLog(folder).metrics.read()[0]["stop/context_overflow"] == 1.0


def test_the_engine_may_hold_less_than_the_model(run: Run) -> None:
    long = ["environment.echo.padding=15", "environment.echo.turns=4", "training.iterations=1"]
    folder = run(*long, *SHORT_ENGINE, layer=WORDS)
    (line,) = MetricsLog(folder).metrics.read()
    assert line["stop/context_overflow"] == 1.0 and not line.get("episodes/failed")


def test_prompt_longer_than_the_engine_holds(run: Run) -> None:
    with told(PalaestraError, "the engine's context 64") as caught:
        run("environment.echo.padding=100", *SHORT_ENGINE, layer=WORDS)
    assert "raise `max_length` of the engine" in str(caught.value)


def test_latest_only_needs_room_for_one_observation(run: Run) -> None:
    short = ["environment.echo.padding=15", "environment.echo.turns=4", "training.iterations=1"]
    folder = run(*short, "agents.*.context=latest_only", layer=WORDS)
    assert MetricsLog(folder).metrics.read()[0]["stop/completed"] == 1.0


def test_fifty_turns(run: Run) -> None:
    long = ["environment.echo.turns=50", "rollout.max_turns=60", "training.iterations=1", "rollout.tasks=1"]
    folder = run(*long, "policies.main.policy.language.context=600", "evaluation.tasks=1", layer=WORDS)
    assert MetricsLog(folder).metrics.read()[0]["turns/mean"] == 50


# ---- training (4) -----------------------------------------------------------------------------------------
def test_gradient_is_not_finite(tmp_path: Path, run: Run) -> None:
    name = own_part(tmp_path, "def mine(batch):\n    return batch['logprob'] * float('nan'), {}")
    with told(PalaestraError, "3 updates in"):
        run("training.iterations=9", layer={"loss": name})
    (newest,) = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1:]
    weights = checkpoint.load_file(newest / "main.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())


def test_nothing_to_learn_from(run: Run) -> None:
    with told(NoSignal, "3 iterations in") as caught:
        run("rollout.temperature=1e-5", "training.max_empty=3", "training.iterations=9")
    assert "rollout.group" in caught.value.remedy


# ---- run folders (5) --------------------------------------------------------------------------------------
def test_run_folder_exists(run: Run) -> None:
    folder = run()
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="a run is already there") as caught:
        run()
    assert all(way in caught.value.remedy for way in ("--resume", "run=<folder>", "--overwrite"))
    assert (folder / "metrics.jsonl").read_bytes() == before
    run(overwrite=True)


def test_no_checkpoint(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run").write_json(RECIPE, resolved().to_json())
    with pytest.raises(RunFolderError, match="no checkpoint"):
        evaluate.run(recipe=[str(tmp_path / "run")], wanted={})


def test_another_architecture(run: Run) -> None:
    folder = run()
    before = (folder / RECIPE).read_bytes()
    with told(CheckpointError, "[8] there, [16]"):
        run("policies.main.policy.network.hidden=[16]", resume=True)
    assert (folder / RECIPE).read_bytes() == before


def test_full_disk(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("training.iterations=3").rename(tmp_path / "whole")
    plain = checkpoint.save_weights

    def full(tensors: Any, path: Path) -> None:
        if "step-000002" in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(tensors, path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_weights", full)
        with pytest.raises(RunFolderError, match="the disk is full") as caught:
            run("training.iterations=3")
    assert "--resume" in caught.value.remedy
    assert RunFolder(tmp_path / "run").checkpoint_steps() == [0, 1]
    folder = run("training.iterations=3", resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl", "checkpoints/step-000003/main.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_damaged_checkpoint(run: Run) -> None:
    folder = run()
    for place in (folder / "checkpoints").glob("step-*"):
        (place / "main.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"main.safetensors"):
        run(resume=True)


def test_damaged_recipe(tmp_path: Path, run: Run) -> None:
    folder = run()
    (folder / RECIPE).write_text(json.dumps(derive(1))[:5] + "{")
    with pytest.raises(RunFolderError, match="it cannot be read"):
        evaluate.run(recipe=[str(folder)], wanted={})


def test_stop_reasons_are_counted(run: Run) -> None:
    written = MetricsLog(run("rollout.max_turns=1")).metrics.read()
    assert all(line[f"stop/{StopReason.MAX_TURNS.value}"] == 1.0 for line in written)
