"""Evaluations of a run, and what they keep open.

1. A run reads the log of its evaluations no more often when it is longer, and a resumed one knows the last of them.
2. A panel on another environment has a runner of its own, which ends with the run, a failed one too, and with `eval`.
3. A run that cannot be put together leaves no runner open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.commands import evaluate
from palaestra.errors import RecipeError, UnknownName
from palaestra.recipe import load
from palaestra.rollout.runner import EpisodeRunner
from palaestra.store.folder import EVALUATIONS
from palaestra.store.lines import JsonLines
from palaestra.store.metrics import MetricsLog
from palaestra.training.loop import Trainer
from palaestra.training.setup import build_setup
from palaestra.training.start import train

SETUP: dict[str, Any] = {
    "seed": 1,
    "environment": {"echo": {"turns": 1}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"tasks": 2, "group": 4, "max_turns": 4},
    "training": {"iterations": 2, "checkpoint_every": 1, "threads": 1},
    "evaluation": {"tasks": 2},
}
ELSEWHERE = "evaluation.environment={echo: {turns: 2}}"
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small setup with overrides, returns its folder."""

    def trained(name: str, *overrides: str, **options: bool) -> Path:
        recipe = load([SETUP], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return trained


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Runners that were made, and those that were closed."""
    known: dict[str, list[Any]] = {"made": [], "closed": []}
    make, close = EpisodeRunner.__init__, EpisodeRunner.close

    def made(self: Any, *arguments: Any) -> None:
        known["made"].append(self)
        make(self, *arguments)

    def closed(self: Any) -> None:
        known["closed"].append(self)
        close(self)

    monkeypatch.setattr(EpisodeRunner, "__init__", made)
    monkeypatch.setattr(EpisodeRunner, "close", closed)
    return known


def all_closed(runners: dict[str, list[Any]], count: int) -> bool:
    made, closed = (sorted(map(id, runners[key])) for key in ("made", "closed"))
    return len(made) == count and made == closed


def test_1_the_log_is_not_read_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, plain = [0], JsonLines.read

    def read(self: JsonLines) -> list[dict[str, Any]]:
        reads[0] += self.path.name == EVALUATIONS
        return plain(self)

    monkeypatch.setattr(JsonLines, "read", read)
    counts = []
    for iterations in (1, 6):
        reads[0] = 0
        run(str(iterations), f"training.iterations={iterations}", "evaluation.every=1", "training.stop_at=2")
        counts.append(reads[0])
    assert counts[0] == counts[1]


def test_1_a_resumed_run_knows_the_last(run: Run) -> None:
    goal = ("training.stop_at=0.0", "training.iterations=5")  # the first evaluation is as good as that
    folder = run("a", "training.iterations=1")
    again = run("a", *goal, resume=True)
    assert again == folder and len(MetricsLog(folder).metrics.read()) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_2_the_panels_runner_ends(
    run: Run, runners: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    if fails:
        monkeypatch.setattr(Trainer, "iterate", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("a", ELSEWHERE)
    else:
        run("a", ELSEWHERE)
    assert all_closed(runners, 2)


def test_2_eval_ends_it(run: Run, runners: dict[str, list[Any]]) -> None:
    folder = run("a", ELSEWHERE)
    runners["made"].clear()
    runners["closed"].clear()
    evaluate.run(recipe=[str(folder)], wanted={})
    assert all_closed(runners, 2)


@pytest.mark.parametrize(("overrides", "count"), [((), 1), (("training.lag=1",), 2)])
def test_3_nothing_stays_open(run: Run, runners: dict[str, list[Any]], overrides: tuple[str, ...], count: int) -> None:
    with pytest.raises(UnknownName, match="no panel is called `absent`"):
        run("a", "evaluation.panel=absent", *overrides)
    assert all_closed(runners, count)


def test_3_a_recipe_that_is_refused(runners: dict[str, list[Any]]) -> None:
    roles = {"a": {"policy": "main", "temperature": 0.5}, "b": {"policy": "main"}}
    changed = {"environment": {"echo": {"agents": ["a", "b"]}}, "agents": roles}
    with pytest.raises(RecipeError):
        build_setup(load([SETUP | changed], []).settings)
    assert all_closed(runners, 0)
