"""Every file of a run folder, damaged in every way: (1) `train --resume` ends with the weights and logs of a run that
nothing has damaged, and says on one line what was wrong, even with `--quiet`; or it refuses on one line and changes
nothing; (2) `eval`, `export`, `explain`, the report and the Python interface work, or refuse on one line; (3) damage of
what only informs, stored episodes and times, stops no run, and what is left out is kept; (4) a checkpoint of another
run is not continued; (5) a resume says how its recipe differs from that of the checkpoint, whatever recipe.json says;
(6) `compare` takes no result of another run for that of a run that has not ended; (7) the journal of a run that plays
ahead loses no group: what is damaged or of another run is played again.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.api import Run
from palaestra.commands import evaluate, explain, export
from palaestra.commands import train as train_command
from palaestra.commands.launch.arms import ArmRun
from palaestra.errors import PalaestraError
from palaestra.evaluation.report import write_report
from palaestra.recipe import load
from palaestra.registry.trust import SIGNATURE
from palaestra.store.folder import (
    EVALUATIONS,
    JOURNAL,
    METRICS,
    RECIPE,
    REPORT,
    RESULT,
    TIMINGS,
    TRAJECTORIES,
    RunFolder,
)
from palaestra.store.journal import Journal
from palaestra.training.start import train
from tests.extras import some
from tests.messages import told

NEWEST = "checkpoints/step-000002"
CHECKPOINT = [f"{NEWEST}/{name}" for name in ("state.json", "main.safetensors", "learner.0.state.pt", "checksums.json")]
FILES = [RECIPE, METRICS, EVALUATIONS, TRAJECTORIES, TIMINGS, RESULT, REPORT, SIGNATURE, *CHECKPOINT]
HOWS = ["missing", "empty", "cut", "flipped", "list", "null", "binary", "nested", "of another run", "a folder"]
CASES = [(name, how) for name in FILES for how in HOWS]
# What a resume does not read, or cannot know to be wrong: one time is as good as another.
UNSAID = {*((name, how) for name in (RESULT, REPORT, SIGNATURE) for how in HOWS), (TIMINGS, "flipped"),
          (TIMINGS, "of another run")}  # fmt: skip
SMALL: dict[str, Any] = {
    "name": "small",
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"tasks": 2, "group": 2, "max_turns": 2},
    "training": {"iterations": 2, "checkpoint_every": 1, "keep_checkpoints": 3, "save_episodes": 1},
    "evaluation": {"tasks": 2, "every": 1},
}
AHEAD: dict[str, Any] = {
    "policies": {
        "main": {"policy": {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}}
    },
    "rollout": {"tasks": 2, "group": 2, "max_turns": 2, "response_tokens": 2},
    "training": {"iterations": 3, "checkpoint_every": 1, "max_staleness": 1, "keep_checkpoints": 4},
}


def trained(folder: Path, layers: dict[str, Any] | None = None, *, resume: bool = False, **changes: Any) -> str:
    recipe = load([SMALL, *([layers] if layers else []), {"run": str(folder), **changes}])
    return train(recipe.settings, recipe=recipe.to_json(), resume=resume, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs that differ in their seed and panel, `first` and `other`."""
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "first")
    trained(folder / "other", seed=9, evaluation={"tasks": 3, "every": 1})
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(runs / "first", tmp_path / "run")
    return RunFolder(tmp_path / "run")


def spoil(file: Path, how: str, other: Path) -> None:
    content = file.read_bytes()
    changed = {
        "empty": b"",
        "cut": content[: len(content) * 2 // 3],
        "flipped": flipped(content),
        "list": b"[]\n",
        "null": b"null\n",
        "binary": random.Random(1).randbytes(300) + b"\n" + random.Random(2).randbytes(90),
        "nested": b"[" * 200_000 + b"\n",
    }
    if how == "of another run":
        shutil.copy(other, file)
    elif how in changed:
        file.write_bytes(changed[how])
    else:
        file.unlink()
        if how == "a folder":
            file.mkdir()


def flipped(content: bytes) -> bytes:
    place = next(place for place in range(len(content) // 2, len(content)) if content[place] not in b" \n")
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def said_of(name: str) -> str:
    """What a line about this file names: the checkpoint, or the file itself."""
    return NEWEST if name.startswith(NEWEST) else name


def result_of(folder: Path) -> list[bytes]:
    names = [METRICS, EVALUATIONS, f"{NEWEST}/main.safetensors", f"{NEWEST}/learner.0.state.pt"]
    return [(folder / name).read_bytes() for name in names]


def resumed(folder: Path) -> None:
    train_command.run(recipe=[str(folder)], resume=True, overwrite=False, quiet=True, smoke=False)


@pytest.mark.parametrize(("name", "how"), some(CASES, fast=24))
def test_1_a_resume_ends_right_or_refuses(
    run: RunFolder, runs: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run / name, how, runs / "other" / name)
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    try:
        resumed(run.path)
    except PalaestraError as error:
        assert said_of(name) in str(error) + capsys.readouterr().err
        after = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
        kept = {file: content for file, content in after.items() if file.name not in (SIGNATURE, REPORT)}
        assert kept.items() <= before.items() and name in (RECIPE, METRICS, EVALUATIONS, SIGNATURE, REPORT)
        return
    said = capsys.readouterr().err
    assert result_of(run.path) == result_of(runs / "first")
    assert said_of(name) in said or (name, how) in UNSAID, said
    assert len(said.splitlines()) <= 3


@pytest.mark.parametrize("name", [METRICS, EVALUATIONS])
@pytest.mark.parametrize("line", [None, b'{"step": 1, "forged": 1}\n', b'{"nostep": 1}\n', b'{"step": 7}\n'])
def test_1_further_lines(
    run: RunFolder, runs: Path, name: str, line: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run / name
    log.write_bytes(log.read_bytes() + (line or log.read_bytes().splitlines(keepends=True)[-1]))
    resumed(run.path)
    assert result_of(run.path) == result_of(runs / "first")
    said = capsys.readouterr().err
    assert (name in said) == (line != b'{"step": 7}\n') and len(said.splitlines()) <= 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), CASES)
def test_2_readers(run: RunFolder, runs: Path, name: str, how: str, tmp_path: Path) -> None:
    spoil(run / name, how, runs / "other" / name)
    folder, wanted = str(run.path), {"policies": ()}
    opened = Run(folder)
    readers: list[Callable[[], Any]] = [
        lambda: evaluate.run(recipe=[folder], wanted=wanted, episodes=None, as_json=True, out=None),
        lambda: export.run(folder=folder, out=str(tmp_path / "exported"), policy=None, checkpoint=None),
        lambda: explain.run(recipe=[folder], smoke=False),
        lambda: write_report(run),
        *(lambda log=log: opened.metrics(log) for log in ("metrics", "evaluations", "timings")),  # type: ignore[misc]
        opened.trajectories,
        opened.plot,
    ]
    for read in readers:
        try:
            read()
        except PalaestraError:
            pass


@pytest.mark.parametrize("name", [METRICS, EVALUATIONS])
def test_2_the_weights_are_exported_all_the_same(
    run: RunFolder, runs: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run / name, "binary", runs)
    export.run(folder=str(run.path), out=str(tmp_path / "exported"), policy=None, checkpoint=None)
    assert f"{name} is cut" in capsys.readouterr().err


@pytest.mark.parametrize("name", [TRAJECTORIES, TIMINGS])
def test_3_what_only_informs(run: RunFolder, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / name).read_bytes().splitlines(keepends=True)
    spoiled = lines[0] + lines[1].replace(b"{", b"<", 1) + b'{"step": "x"}\n' + b"".join(lines[2:])
    (run / name).write_bytes(spoiled)
    resumed(run.path)
    assert f"{name}: 2 of its lines cannot be used; the run goes on" in capsys.readouterr().err
    assert (run / name).read_bytes() == lines[0] + b"".join(lines[2:])
    assert (run / f"{name}.damaged").read_bytes() == spoiled
    resumed(run.path)
    assert "cannot be used" not in capsys.readouterr().err


def test_3_the_report_says_what_it_lacks(run: RunFolder) -> None:
    (run / TRAJECTORIES).write_text('{"step": 1, "name": "train", "trajectory": []}\n')
    assert f"{TRAJECTORIES}:1: this line is damaged: it is no episode" in write_report(run).read_text()
    with told(PalaestraError, f"{TRAJECTORIES}:1"):
        Run(run.path).trajectories()


def test_4_a_checkpoint_of_another_run(run: RunFolder, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / NEWEST)
    shutil.copytree(runs / "other" / NEWEST, run / NEWEST)
    resumed(run.path)
    assert f"{NEWEST}: {METRICS} " in capsys.readouterr().err
    assert result_of(run.path) == result_of(runs / "first")


def test_5_the_recipe_of_the_checkpoint(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (run / SIGNATURE).unlink()  # so that nothing else shows the change
    (run / RECIPE).write_text((run / RECIPE).read_text().replace('"value": 2', '"value": 3'))
    recipe = load([SMALL, {"run": str(run.path), "training": {**SMALL["training"], "iterations": 3}}])
    train(recipe.settings, recipe=recipe.to_json(), resume=True)
    assert "changed: training.iterations 2 -> 3" in capsys.readouterr().err


def test_5_a_recipe_that_is_gone(run: RunFolder, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = (run / RECIPE).read_bytes()
    (run / RECIPE).unlink()
    trained(run.path, resume=True)
    assert f"{RECIPE}: the file is missing. It is written anew." in capsys.readouterr().err
    assert json.loads((run / RECIPE).read_bytes()).keys() == json.loads(written).keys()
    assert result_of(run.path) == result_of(runs / "first")


def test_6_a_result_of_another_run(run: RunFolder) -> None:
    arm = ArmRun(arm="a", seed=1, folder=run.path, arguments=())
    assert arm.complete
    for content in ("", "[]", "null", '{"step": 7, "line": "x"}', '{"line": "x"}'):
        (run / RESULT).write_text(content)
        assert not arm.complete


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that plays ahead, as it is when it is killed after two of its three iterations."""
    folder = tmp_path_factory.mktemp("ahead") / "run"
    trained(folder, AHEAD)
    shutil.rmtree(folder / "checkpoints" / "step-000003")
    return folder


@pytest.mark.parametrize("how", some(["missing", "flipped", "binary", "a folder", "list", "of another run"], fast=3))
def test_7_a_journal_that_is_damaged(ahead: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ahead, tmp_path / "run")
    (tmp_path / "other").mkdir()
    Journal(tmp_path / "other")
    spoil(tmp_path / "run" / JOURNAL, how, tmp_path / "other" / JOURNAL)
    trained(tmp_path / "run", AHEAD, resume=True)
    assert JOURNAL in capsys.readouterr().err
    logs = [(folder / METRICS).read_text().splitlines() for folder in (ahead, tmp_path / "run")]
    assert len(logs[0]) == len(logs[1]) == 3
    first, again = (json.loads(log[-1]) for log in logs)
    assert again["environment_steps"] == first["environment_steps"] and again["step"] == 3


def test_7_the_lines_of_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    identity = journal.identity
    journal.plan(0, [])
    journal.plan(1, [])
    assert Journal(tmp_path).plans == {0: [], 1: []} and Journal(tmp_path).left_out == 0
    content = (tmp_path / JOURNAL).read_text()
    (tmp_path / JOURNAL).write_text(content.replace('"plan": 1', '"plan": 7'))
    read = Journal(tmp_path)
    assert read.plans == {0: []} and read.left_out == 1 and read.identity == identity
    assert read.belongs_to(identity) and not read.belongs_to("another") and not read.plans
    assert Journal(tmp_path).identity == "another"
