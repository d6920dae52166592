"""Branching in a run: (1) without branches a run is that of plain groups, bit for bit; (2) with branches it counts what
was played once, logs its trees and repeats itself; (3) both methods train, with soft and with hard credit; (4) what
cannot work is refused before the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train

SMALL = """
environment: {hopsearch: {entities: 8, relations: 2, hops: [1, 2], max_turns: 5}}
policies: {main: {policy: {network: {hidden: [16], critic: false}}}}
rollout: {tasks: 3, group: 6, max_turns: 5}
training: {iterations: 2, save_episodes: 0}
warm_start: {episodes: 64, epochs: 6, batch_tokens: 64, optimizer: {adamw: {lr: 3.0e-3}}}
evaluation: {tasks: 8}
"""


def run(place: Path, *method: str) -> list[dict[str, Any]]:
    """The log of a small run, without times."""
    recipe = place.parent / "small.yaml"
    recipe.write_text(SMALL)
    files = [name for name in method if name.endswith(".yaml")]
    changes = [name for name in method if not name.endswith(".yaml")]
    loaded = load([*files, str(recipe)], [*changes, f"run={place}"])
    train(loaded.settings, recipe=loaded.to_json(), quiet=True)
    log = MetricsLog(place).metrics.read()
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in log]


def test_without_branches(tmp_path: Path) -> None:  # rule 1
    plain = run(tmp_path / "plain", "grpo/method.yaml", "aggregate.how=token-mean")
    for name, strategy in (("base", "{base: -1.0}"), ("initial", "{initial: 6}")):
        found = run(tmp_path / name, "arpo/method.yaml", f"strategy=[{{branching: {strategy}}}]")
        for left, right in zip(plain, found, strict=True):
            assert left == {key: value for key, value in right.items() if not key.startswith("branching/")}
    assert all(line["policy/grad_norm"] > 0 for line in plain)


def test_with_branches(tmp_path: Path) -> None:  # rule 2
    method = ("arpo/method.yaml", "strategy=[{branching: {initial: 2, base: 0.6}}]")
    first, again = run(tmp_path / "first", *method), run(tmp_path / "again", *method)
    assert first == again
    plain = run(tmp_path / "plain", "grpo/method.yaml", "aggregate.how=token-mean")
    assert first[-1]["environment_steps"] < plain[-1]["environment_steps"]
    for line in first:
        assert line["branching/branches"] > 0 and 0 < line["branching/copied"] < 1
        assert line["branching/initial"] == 2 and 0 < line["branching/top3"] <= 1


@pytest.mark.parametrize(
    "method", [["arpo/aepo.yaml"], ["arpo/method.yaml", "advantage=[grpo, {shared_prefix: {mode: hard}}]"]]
)
def test_methods_train(tmp_path: Path, method: list[str]) -> None:  # rule 3
    log = run(tmp_path / "run", *method)
    assert all(line["policy/grad_norm"] > 0 for line in log)
    assert method != ["arpo/aepo.yaml"] or all(line["policy/zero_gradient_positive"] == 0 for line in log)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["rollout.runner=vector"], "`branching` uses forks of episodes, and the runner `vector` makes none"),
        (["environment=echo"], "`branching` uses `snapshot` of the environment, and `echo` has none"),
        (["strategy=[]"], "`shared_prefix` reads the column `node`"),
        (["strategy=[{branching: {beam: 0}}]"], "beam"),
    ],
)
def test_refusals(tmp_path: Path, changes: list[str], message: str) -> None:  # rule 4
    with pytest.raises(RecipeError, match=message):
        run(tmp_path / "run", "arpo/method.yaml", *changes)
