"""What must hold of what a run says about its evaluation tasks.

1. "Held-out" is said only where no content of the panel was trained on; else how many were; else the split.
2. Demonstrations count as trained on, and so do the records of a file, if they tell their content.
3. A resumed run knows what was trained on before; `palaestra eval` reads it from the checkpoint, for a part of the
   panel too; of other tasks, and of who was not trained, it says the split.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Task
from palaestra.data.task import content_digest
from palaestra.envs.probes.sums import Sums
from palaestra.envs.worlds.dataset.records import read_records
from palaestra.recipe import load
from palaestra.training.monitor.panel import Panel
from palaestra.training.setup import build_setup
from tests.commands.conftest import SMALL, Command, palaestra

__all__ = ["palaestra"]  # a fixture

MAZES = {"rooms": {"rooms": 4, "max_turns": 4, "mazes": 2}}
TICKETS: dict[str, Any] = {"tickets": {"max_turns": 4}}


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palaestra: Command) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(environment: Any, *arguments: str, **sections: Any) -> str:
        path = tmp_path / "small.yaml"
        path.write_text(json.dumps(SMALL | {"environment": environment, "evaluation": {"tasks": 6}} | sections))
        done = palaestra("train", path, "--quiet", *arguments)
        assert done.code == 0, done.err
        return done.out[-1].partition(" on ")[2]

    return run


def test_1_what_is_said(train: Any) -> None:
    assert train(TICKETS) == "6 held-out tasks"
    assert train(MAZES, "--overwrite") == "6 tasks, 6 of them also trained on"
    assert train({"echo": {}}, "--overwrite") == "6 tasks of the split eval"
    assert train({"signals": {"attributes": 1, "values": 2, "distractors": 1}}, "--overwrite").startswith("6 tasks, ")


def test_2_demonstrations_count(train: Any) -> None:
    mazes = {"rooms": MAZES["rooms"] | {"mazes": 64}}
    small = {"rollout": {"tasks": 1, "group": 4, "max_turns": 4}}
    assert train(mazes, **small) != "6 tasks, 6 of them also trained on"
    warm = {"episodes": 400, "epochs": 1, "optimizer": {"adamw": {"lr": 0.01}}}
    assert train(mazes, "--overwrite", warm_start=warm, **small) == "6 tasks, 6 of them also trained on"


def test_3_later(train: Any, palaestra: Command) -> None:
    assert train(MAZES) == "6 tasks, 6 of them also trained on"
    state = json.loads((Path("runs/small/checkpoints/step-000002/state.json")).read_text())["panel"]
    assert len(state["contents"]) == len(state["trained"]) == 2
    assert train(MAZES, "--resume") == "6 tasks, 6 of them also trained on"

    def said(*arguments: object) -> str:
        return palaestra("eval", *arguments).out[-1].partition(" on ")[2]

    assert said("runs/small") == "6 tasks, 6 of them also trained on"
    assert said("runs/small", "evaluation.tasks=3") == "3 tasks, 3 of them also trained on"
    assert said("runs/small", "environment.rooms.mazes=0") == "6 tasks of the split eval"
    assert said("small.yaml", "--policy", "expert") == "6 tasks of the split eval"


# ---- the panel itself -------------------------------------------------------------------------------------
@pytest.fixture
def panel() -> Any:
    settings = load(
        [SMALL | {"environment": {"sums": {"held_out": True}}, "policies": {"main": {"policy": "random"}}}]
    ).settings
    setup = build_setup(settings)
    made = Panel(settings, setup)
    yield made
    made.close()
    setup.runner.close()


def test_2_records_of_a_file(panel: Any, tmp_path: Path) -> None:
    world = Sums(held_out=True)
    path = tmp_path / "pairs.jsonl"
    pair = {"prompt": "1 + 1", "chosen": "2", "rejected": "3"}
    path.write_text("".join(json.dumps(pair | {"content": c}) + "\n" for c in ("other", panel.tasks[1].content)))
    tasks = [trajectory.task for record in read_records(path, "solver").records for trajectory in record]
    panel.note(world, tasks[:2])
    assert panel.described == "4 held-out tasks"
    panel.note(world, tasks)
    assert panel.described == "4 tasks, 1 of them also trained on"
    path.write_text(json.dumps(pair))
    panel.note(world, [read_records(path, "solver").records[0][0].task])
    assert panel.described == "4 tasks of the split eval" and panel.state_dict() == {"contents": None}


def test_1_tasks_made_otherwise_count_too(panel: Any) -> None:
    world = Sums(held_out=True)
    bare = Task(env="sums", seed=panel.tasks[0].seed)  # as a program may make it
    assert content_digest("sums", world.content(bare)) == panel.tasks[0].content
    panel.note(world, world.tasks("train", 40, 3))
    assert panel.shared == 0
    panel.note(world, [bare])
    assert panel.shared == 1


def test_3_states(panel: Any) -> None:
    panel.load_state_dict({})  # a checkpoint of an earlier version
    assert panel.shared is None
