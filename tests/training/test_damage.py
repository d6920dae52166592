"""Damaged run folders: (1) every flipped bit in a checkpoint is found, and the run goes on from the one before, with
the same end; (2) so is a missing, a further and a cut file; (3) a log that is missing, cut or changed is found as a
checkpoint is, and its lines are written again; (4) if nothing is left to go on from, one line says so; (5) a checkpoint
without checksums loads; (6) descriptions and states of another form are errors of one line; (7) `eval`, `compare` and
an explicit `--checkpoint` notice it too; (8) a `recipe.json` that was changed is noticed; (9) two resumes at once, one
of them killed or not, leave the logs of one run.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.commands.runs import checkpoint_of, recipe_of
from palaestra.errors import CheckpointError, PalaestraError, RunFolderError
from palaestra.evaluation.runs import load_arm
from palaestra.recipe import load
from palaestra.store.checksums import SUMS, file_fault, log_fault
from palaestra.store.folder import EVALUATIONS, METRICS, RECIPE, TRAJECTORIES, RunFolder
from palaestra.training.checkpoint import damage, newest_intact, read_state
from palaestra.training.start import train

LOGS = (METRICS, EVALUATIONS, TRAJECTORIES)
SMALL: dict[str, Any] = {
    "name": "small",
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 4},
    "training": {"iterations": 3, "checkpoint_every": 1, "keep_checkpoints": 3},
    "evaluation": {"tasks": 4, "every": 1},
}


def trained(folder: Path, *, resume: bool = False, **changes: Any) -> str:
    recipe = load([SMALL, {"run": str(folder), **changes}])
    return train(recipe.settings, recipe=recipe.to_json(), resume=resume, quiet=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    trained(folder)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> RunFolder:
    """A copy of a run of three iterations, which a test damages."""
    shutil.copytree(original, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def logs_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (METRICS, EVALUATIONS)]


def test_1_every_flipped_bit_is_found(run: RunFolder, record_property: Callable[[str, object], None]) -> None:
    place, draw = run.checkpoint(3), random.Random(1)
    files = sorted(file for file in place.iterdir() if file.name != SUMS)
    assert len(files) >= 3
    record_property("trials", 20 * len(files) + 60)
    for file in files:
        content = file.read_bytes()
        for _ in range(20):
            flip(file, draw)
            assert file.name in (damage(place) or ""), file.name
            file.write_bytes(content)
    assert damage(place) is None
    # A flip in the checksums themselves is found, but for white space between them.
    content = (place / SUMS).read_bytes()
    flipped = 0
    for _ in range(60):
        flip(place / SUMS, draw)
        changed = (place / SUMS).read_bytes()
        same = damage(place) is None and log_fault(place, run.path, *LOGS) is None
        flipped += not same
        try:
            assert not same or json.loads(changed) == json.loads(content)
        except ValueError:
            assert not same
        (place / SUMS).write_bytes(content)
    assert flipped > 40


@pytest.mark.parametrize("name", ["main.safetensors", "state.json", SUMS])
def test_1_the_run_goes_on_from_the_one_before(
    run: RunFolder, original: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.checkpoint(3) / name).write_bytes(b"{" + (run.checkpoint(3) / name).read_bytes()[1:-2] + b"x")
    result = trained(run.path, resume=True)
    assert logs_of(run.path) == logs_of(original)
    assert (run.checkpoint(3) / "main.safetensors").read_bytes() == (
        original / "checkpoints" / "step-000003" / "main.safetensors"
    ).read_bytes()
    assert run.checkpoint_steps() == [1, 2, 3] and (run.path / "checkpoints" / "step-000003.damaged").is_dir()
    assert result == trained(run.path, resume=True)


def test_1_it_is_said(run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    (run.checkpoint(3) / "main.safetensors").unlink()
    recipe = load([SMALL, {"run": str(run.path)}])
    train(recipe.settings, recipe=recipe.to_json(), resume=True)
    said = "".join(capfd.readouterr()).replace("\n", " ")
    assert "main.safetensors is missing" in said and "step-000002" in said


def test_2_files_that_are_missing_or_too_many(run: RunFolder) -> None:
    place = run.checkpoint(3)
    (place / "further.pt").write_bytes(b"x")
    assert file_fault(place) == "further.pt has no checksum"
    (place / "further.pt").unlink()
    content = (place / "main.safetensors").read_bytes()
    (place / "main.safetensors").write_bytes(content[:-1])
    assert file_fault(place) == "main.safetensors does not match its checksum"
    (place / "main.safetensors").unlink()
    assert file_fault(place) == "main.safetensors is missing"
    (place / SUMS).unlink()
    assert damage(place) == f"{SUMS} is missing"


@pytest.mark.parametrize("name", [METRICS, EVALUATIONS])
@pytest.mark.parametrize("how", ["cut", "changed", "half"])
def test_3_logs(run: RunFolder, original: Path, name: str, how: str) -> None:
    content = (run / name).read_bytes()
    lines = content.splitlines(keepends=True)
    (run / name).write_bytes(
        {
            "cut": b"".join(lines[:-1]),
            "changed": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
            "half": content[:-9],
        }[how]
    )
    place, passed = newest_intact(run, logs=True)
    assert place == run.checkpoint(2) and name in passed[0]
    trained(run.path, resume=True)
    assert logs_of(run.path) == logs_of(original)


@pytest.mark.parametrize("name", [METRICS, EVALUATIONS])
def test_3_a_missing_log(run: RunFolder, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(CheckpointError, match=f"none of its checkpoints can be used(.|\n)*{name} is missing"):
        trained(run.path, resume=True)
    assert run.checkpoint_steps() == [1, 2, 3], "nothing was moved"


def test_3_logs_that_had_not_begun(run: RunFolder, original: Path) -> None:
    """As after a kill between the first checkpoint of a run and its first line."""
    for name in (METRICS, EVALUATIONS):
        (run / name).unlink()
    run.set_aside_after(0)
    with run.write_checkpoint(0) as place:
        (place / "state.json").write_text(json.dumps({"step": 0, "counters": {}, "policies": {}, SUMS: True}))
    assert log_fault(place, run.path, *LOGS) is None and newest_intact(run, logs=True) == (run.checkpoint(0), [])
    (run / METRICS).write_text("{}\n")
    assert log_fault(run.checkpoint(0), run.path, *LOGS) is None


def test_3_later_lines_that_are_damaged_go(run: RunFolder, original: Path) -> None:
    with (run / METRICS).open("ab") as log:
        log.write(b'{"step": 4, "rew\xff\n')
    trained(run.path, resume=True)
    assert logs_of(run.path) == logs_of(original)


def test_4_nothing_is_left(run: RunFolder) -> None:
    for step in (1, 2, 3):
        (run.checkpoint(step) / "main.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of its checkpoints can be used"):
        trained(run.path, resume=True)
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(CheckpointError, match="the checkpoints are gone, and the run had done 3 iterations"):
        trained(run.path, resume=True)
    assert len((run / METRICS).read_text().splitlines()) == 3


def test_5_without_checksums(run: RunFolder, original: Path) -> None:
    for step in (1, 2, 3):
        place = run.checkpoint(step)
        (place / SUMS).unlink()
        described = json.loads((place / "state.json").read_text())
        del described[SUMS]
        (place / "state.json").write_text(json.dumps(described))
    shutil.rmtree(run.checkpoint(3))
    (run / METRICS).write_text("".join((run / METRICS).read_text().splitlines(keepends=True)[:2]))
    assert newest_intact(run, logs=True) == (run.checkpoint(2), [])
    trained(run.path, resume=True)
    assert logs_of(run.path) == logs_of(original)


def without_sums(place: Path) -> None:
    """Make the checkpoint one of a version that wrote no checksums."""
    (place / SUMS).unlink(missing_ok=True)
    described = json.loads((place / "state.json").read_text())
    described.pop(SUMS, None)
    (place / "state.json").write_text(json.dumps(described))


WRONG: dict[str, Any] = {
    "list": [],
    "text": "x",
    "no step": {"counters": {}, "policies": {}},
    "step": {"step": "x", "counters": {}, "policies": {}},
    "no counters": {"step": 3, "policies": {}},
    "counters": {"step": 3, "counters": {"updates": "x"}, "policies": {}},
    "policies": {"step": 3, "counters": {}, "policies": []},
    "policy": {"step": 3, "counters": {}, "policies": {"main": 3}},
    "architecture": {"step": 3, "counters": {}, "policies": {"main": {"version": 1}}},
    "version": {"step": 3, "counters": {}, "policies": {"main": {"architecture": {}}}},
    "no policy": {"step": 3, "counters": {}, "policies": {}},
}


@pytest.mark.parametrize("case", WRONG)
def test_6_descriptions(run: RunFolder, case: str) -> None:
    place = run.checkpoint(3)
    (place / SUMS).unlink()
    (place / "state.json").write_text(json.dumps(WRONG[case]))
    shutil.rmtree(run.checkpoint(2)), shutil.rmtree(run.checkpoint(1))
    with pytest.raises(PalaestraError):
        trained(run.path, resume=True)


@pytest.mark.parametrize("key", ["guard", "panel"])
@pytest.mark.parametrize("value", [{"x": 1}, [], 3, {"seen": 3}])
def test_6_guard_and_panel(run: RunFolder, key: str, value: Any) -> None:
    place = run.checkpoint(3)
    without_sums(place)
    described = json.loads((place / "state.json").read_text())
    assert key in described
    (place / "state.json").write_text(json.dumps(described | {key: value}))
    try:
        trained(run.path, resume=True)
    except CheckpointError as error:
        assert "state.json" in str(error) or key in str(error)


def states(content: Any) -> list[Any]:
    """Wrong forms of the state of the learner."""
    optimizer = content["main"]["optimizer"]
    adam = optimizer["adam"]
    moments = {place: held | {"exp_avg": torch.zeros(3)} for place, held in adam["state"].items()}
    other_shapes = optimizer | {"adam": adam | {"state": moments}}
    shorter = optimizer | {"adam": {"state": {}, "param_groups": []}}
    return [
        *({}, [], None, 3, "x", {"x": 1}, {"main": {}}, {"main": {"optimizer": optimizer}}),
        *({"main": {"optimizer": one, "spoiled": 0}} for one in (shorter, other_shapes, [], None)),
        {"main": {"optimizer": optimizer, "spoiled": "x"}},
    ]


@pytest.mark.parametrize("number", range(13))
def test_6_states(run: RunFolder, number: int) -> None:
    place = run.checkpoint(3)
    without_sums(place)
    (file,) = place.glob("learner.0.state.pt")
    torch.save(states(torch.load(file, weights_only=True))[number], file)
    with pytest.raises(CheckpointError, match=r"learner|optimizer: adamw"):
        trained(run.path, resume=True)


def test_6_another_network(run: RunFolder) -> None:
    from safetensors.torch import load_file, save_file

    place = run.checkpoint(3)
    without_sums(place)
    tensors = load_file(place / "main.safetensors")
    first = sorted(tensors)[0]
    for other in ({**tensors, first: torch.zeros(3)}, {k: v for k, v in tensors.items() if k != first}):
        save_file(other, place / "main.safetensors")
        with pytest.raises(CheckpointError, match="does not fit this recipe"):
            trained(run.path, resume=True)


def test_7_readers(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (run.checkpoint(3) / "main.safetensors").write_bytes(b"x")
    assert checkpoint_of(run, None) == run.checkpoint(2)
    assert "main.safetensors does not match its checksum" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint_of(run, 3)
    (run / EVALUATIONS).write_text((run / EVALUATIONS).read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunFolderError, match=f"{EVALUATIONS} is cut"):
        load_arm("a", [run])


def test_7_a_line_without_an_iteration(run: RunFolder) -> None:
    for step in (1, 2, 3):
        without_sums(run.checkpoint(step))
    (run / METRICS).write_text('{"reward/mean": 1.0}\n')
    with pytest.raises(RunFolderError, match="`step` is no whole number"):
        load_arm("a", [run])


def test_8_the_recipe(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    recipe_of(run)
    assert not capsys.readouterr().err
    (run / RECIPE).write_text((run / RECIPE).read_text().replace('"value": 4', '"value": 5'))
    recipe_of(run)
    assert "recipe.json is not as it was written" in capsys.readouterr().err
    assert read_state(run.checkpoint(3))["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_9_two_resumes_at_once(original: Path, tmp_path: Path, number: int) -> None:
    """One of them trains and is killed at some moment; the other one trains, or is told so; the logs are right."""
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(SMALL | {"run": str(tmp_path / "run")}))
    draw = random.Random(number)
    command = [sys.executable, "-m", "palaestra", "train", str(recipe), "--resume", "--quiet"]
    shutil.copytree(original, tmp_path / "run")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:06d}")
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    if number % 2:
        time.sleep(2.0 + 6.0 * draw.random())
        both[0].kill()
    said = [process.communicate(timeout=120)[1] for process in both]
    codes = [process.returncode for process in both]
    assert all(
        code in (0, -9) or (code == 2 and "another run writes" in text) for code, text in zip(codes, said, strict=True)
    ), said
    assert "Traceback" not in "".join(said)
    last = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert last.returncode == 0, last.stderr
    assert logs_of(tmp_path / "run") == logs_of(original) and not (tmp_path / "run" / ".lock").exists()
