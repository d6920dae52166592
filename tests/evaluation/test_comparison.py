"""What must hold for comparisons:

(1) curves are read from run folders by seed, evaluations take the budget of their iteration;
(2) all arms end at one budget: the given one, or where the shortest run ended; a shorter run is refused;
(3) between logged points curves are linear, and areas are mean heights;
(4) differences are paired by seed; the verdict needs both intervals to exclude 0, and at least two seeds;
(5) a false verdict is as rare as the level says, with five seeds;
(6) JSON has the documented keys, holds no path, and is the same for the same runs;
(7) unknown metrics and references are refused with the nearest names; equal seeds are refused;
(8) table and plot can be made.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from palaestra.errors import RunFolderError, UnknownName
from palaestra.evaluation.comparison import Comparison, compare, difference
from palaestra.evaluation.comparison_plot import plot
from palaestra.evaluation.runs import Arm, Run, load_arm
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import MetricsLog
from tests.messages import told

Runs = Callable[..., RunFolder]
METRIC = "eval/rooms/success"


@pytest.fixture
def arms(tmp_path: Path, run: Runs) -> list[Arm]:
    """Two arms, three seeds: `fast` is 0.2 above `slow` after the start, with a little noise by seed."""
    slow = [run(tmp_path / f"slow{s}", [0.1, 0.3 + s / 50, 0.5 + s / 50], seed=s) for s in range(3)]
    fast = [run(tmp_path / f"fast{s}", [0.1, 0.5 + s / 50, 0.7 + s / 40], seed=s) for s in (2, 0, 1)]
    return [load_arm("slow", slow), load_arm("fast", [folder.path for folder in fast])]


def test_runs_are_read(arms: list[Arm]) -> None:  # rule 1
    assert arms[1].seeds == [0, 1, 2]
    x, y = arms[1].runs[1].curve(METRIC)
    assert (x.tolist(), y.tolist()) == ([0, 100, 200], [0.1, 0.52, 0.725])
    assert arms[0].runs[0].curve("reward/mean", axis="updates")[0].tolist() == [2, 4]


def test_curves_ascend_whatever_the_order_of_lines() -> None:  # rule 1
    lines = [{"environment_steps": x, METRIC: y} for x, y in ((20, 0.2), (10, 0.9), (20, 0.3), (0, 0.0))]
    x, y = Run(name="r", seed=0, lines=tuple(lines)).curve(METRIC)
    assert (x.tolist(), y.tolist()) == ([0, 10, 20], [0.0, 0.9, 0.3])  # the last line at 20 counts


def test_seeds_may_be_given(tmp_path: Path, run: Runs) -> None:  # rule 1
    folder = run(tmp_path / "a", [0.0, 1.0], seed=3)
    assert load_arm("a", [folder]).seeds == [3]
    assert load_arm("a", [folder], seeds=[9]).seeds == [9]
    folder.write_json("recipe.json", {"seed": {"value": 5, "origin": "recipe.yaml:1"}})
    assert load_arm("a", [folder]).seeds == [5]


def test_an_equal_budget(tmp_path: Path, arms: list[Arm], run: Runs) -> None:  # rules 2 and 3
    longer = load_arm("longer", [run(tmp_path / "longer", [0.0, 0.4, 0.8, 0.9], seed=0)])
    found = compare([*arms, longer], metric=METRIC)
    assert found.budget == 200
    assert [arm.final.per_seed[0] for arm in found.arms] == pytest.approx([0.5, 0.7, 0.8])
    assert found.arms[2].area.per_seed[0] == pytest.approx(0.4)  # trapezoids 0, .4, .8
    assert found.arms[2].updates == {0: 4.0}
    half = compare([*arms, longer], metric=METRIC, budget=150)
    assert half.arms[2].final.per_seed[0] == pytest.approx(0.6)
    assert half.grid[[0, -1]].tolist() == [0.0, 150.0]
    with pytest.raises(RunFolderError, match="arm slow, seed 0") as caught:
        compare(arms, metric=METRIC, budget=300)
    assert "--resume" in caught.value.remedy


def test_updates_that_differ_are_said(tmp_path: Path, arms: list[Arm], run: Runs) -> None:  # rule 2
    assert not any("updates" in note for note in compare(arms, metric=METRIC).notes())
    other = load_arm("other", [run(tmp_path / "x", [0.0, 0.4, 0.8, 0.9], seed=0, width=50)])
    assert any(
        "updates up to this budget: slow 3, fast 3, other 6" in note
        for note in compare([*arms, other], metric=METRIC).notes()
    )


def test_differences_are_paired(arms: list[Arm]) -> None:  # rule 4
    found = compare(arms, metric=METRIC, reference="slow").differences["fast"]
    assert found["final"].per_seed == pytest.approx({0: 0.2, 1: 0.205, 2: 0.21})
    assert found["final"].verdict == "higher"
    assert found["final"].student is not None
    assert found["final"].student.low == pytest.approx(0.205 - 4.30265 * 0.005 / 3**0.5, abs=1e-6)
    backwards = compare(arms, metric=METRIC, reference="fast").differences["slow"]
    assert backwards["final"].verdict == "lower"
    assert compare(arms, metric=METRIC).reference == "slow"


def test_verdicts() -> None:  # rule 4
    zero = dict.fromkeys(range(5), 0.0)
    assert difference({0: 1.0}, {0: 0.0}).verdict == "too few seeds"
    assert difference({0: 1.0, 1: 1.0}, {1: 0.0, 2: 0.0}).verdict == "too few seeds"  # one seed in common
    assert difference(dict(enumerate([0.1, -0.1, 0.2, -0.2, 0.0])), zero).verdict == "no difference seen"
    positive = dict(enumerate([0.01, 0.02, 0.01, 0.4, 0.02]))  # the bootstrap alone would be sure
    found = difference(positive, zero)
    assert found.bootstrap is not None
    assert found.bootstrap.excludes(0)
    assert found.verdict == "no difference seen"


def test_false_verdicts_are_rare() -> None:  # rule 5
    generator = np.random.default_rng(0)
    zero = dict.fromkeys(range(5), 0.0)
    drawn = [difference(dict(enumerate(generator.normal(size=5))), zero, resamples=200) for _ in range(1000)]
    share = np.mean([found.verdict != "no difference seen" for found in drawn])
    assert 0.02 < share < 0.07


def test_json(arms: list[Arm], tmp_path: Path) -> None:  # rule 6
    found = compare(arms, metric=METRIC).to_json()
    keys = re.findall(r"^ {8}(\w+)   +\S", Comparison.to_json.__doc__ or "", re.MULTILINE)
    assert list(found) == keys
    assert found["arms"]["fast"]["seeds"] == [0, 1, 2]
    assert found["arms"]["fast"]["runs"] == ["fast0", "fast1", "fast2"]
    assert found["differences"]["fast"]["final"]["verdict"] == "higher"
    assert set(found["versions"]) >= {"palaestra", "python", "torch", "numpy"}
    text = json.dumps(found, allow_nan=False)
    assert str(tmp_path) not in text
    assert text == json.dumps(compare(arms, metric=METRIC).to_json())


def test_unknown_names(arms: list[Arm]) -> None:  # rule 7
    with pytest.raises(UnknownName, match=METRIC):
        compare(arms, metric="eval/rooms/sucess")
    with pytest.raises(UnknownName, match="slow, fast"):
        compare(arms, metric=METRIC, reference="medium")


def test_equal_seeds_are_refused(tmp_path: Path, run: Runs) -> None:  # rule 7
    folders = [run(tmp_path / name, [0.0, 1.0], seed=1) for name in "ab"]
    with told(RunFolderError, "seed"):
        load_arm("x", folders)
    with pytest.raises(RunFolderError, match="no run"):
        load_arm("x", [])


def test_a_run_that_is_still_writing(tmp_path: Path, run: Runs) -> None:  # rule 1
    folder = run(tmp_path / "a", [0.0, 0.5], seed=0)
    MetricsLog(folder).append_evaluation(2, {METRIC: 0.9})  # its iteration is not logged: no budget, no point
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 3, "eval')
    assert load_arm("a", [folder]).runs[0].curve(METRIC)[1].tolist() == [0.0, 0.5]


def shown(arms: list[Arm]) -> Comparison:
    return compare(arms, metric=METRIC)


def test_table(arms: list[Arm]) -> None:  # rule 8
    text = shown(arms).text()
    assert "minus slow" in text
    assert "higher" in text
    assert "0.725 [0.700, 0.750]" in text
    assert all(note.split(":")[0] in " ".join(text.split()) for note in shown(arms).notes())


def test_a_table_moves_no_cursor(arms: list[Arm]) -> None:  # rule 8
    """Names of arms are names of folders, which others may have made."""
    named = [dataclasses.replace(arm, name=f"\x1b[2J[bold]{arm.name}") for arm in arms]
    text = shown(named).text(width=200)
    assert "\x1b" not in text and "␛[2J[bold]" in text


def test_plot(arms: list[Arm], tmp_path: Path) -> None:  # rule 8
    first, second = (plot(shown(arms), tmp_path / f"{k}.png") for k in (1, 2))
    assert first.read_bytes() == second.read_bytes()
    pixels = np.asarray(Image.open(first).convert("RGB"))
    for color in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):
        assert (np.abs(pixels.astype(int) - color).sum(axis=2) < 12).sum() > 200  # both arms are drawn
    assert b"<svg" in plot(shown(arms), tmp_path / "a.svg").read_bytes()
