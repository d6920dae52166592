"""Dynamic sampling: (1) all groups that are kept differ, there are as many as asked for, in the order in which they
were played; (2) where all groups differ it changes nothing; (3) what was played beyond counts as spent, and its share
is logged; (4) the cap is an error, and no cap goes on; (5) the metric may be outcome, return or a number that was told;
(6) a metric that is not there is refused; (7) failed episodes are not compared; (8) no group of a run is constant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Play, StopReason, Task, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import NoSignal, RecipeError, UnknownName
from palaestra.recipe import load
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import DynamicSampling, RolloutContext, play_through
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train
from tests.messages import told

TASK = Task(env="e", seed=0)


def plays(first: int, groups: int) -> list[Play]:
    return [Play(task=TASK, group=f"{g:02d}", sample=s, seed=0) for g in range(first, first + groups) for s in (0, 1)]


def ended(play: Play, results: Sequence[Any]) -> Trajectory:
    """Trajectory of one play: the result of its group's samples is `results[group]`."""
    result = results[int(play.group) % len(results)][play.sample]
    found = Trajectory(task=TASK, group=play.group, sample=play.sample, info={"score": result, "words": "many"})
    if result is None:
        found.stop = StopReason.ERROR
        return found
    found.outcome, found.returns = float(result), {"x": 2.0 * result}
    return found


def context(results: Sequence[Any], groups: int) -> RolloutContext:
    given = groups

    async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
        return [ended(play, results) for play in plays]

    def more(count: int) -> list[Play]:
        nonlocal given
        given += count
        return plays(given - count, count)

    return RolloutContext(
        inner=play_through([], collect),
        more=more,
        settings=RolloutSettings(),
        sampling=Sampling(),
        step=0,
        seed=0,
    )


def sample(part: DynamicSampling, results: Sequence[Any], *, groups: int = 3) -> tuple[list[str], RolloutContext]:
    """Kept trajectories, as group and sample, and the rollout afterwards."""
    used = context(results, groups)
    kept = asyncio.run(part(plays(0, groups), used))
    return [t.id for t in kept], used


DIFFER, SOLVED, FAILED = (1, 0), (1, 1), (0, 0)


def test_groups_differ() -> None:  # rules 1 and 3
    kept, used = sample(DynamicSampling(), [SOLVED, DIFFER, FAILED, FAILED, DIFFER, DIFFER, DIFFER])
    assert kept == ["01/0", "01/1", "04/0", "04/1", "05/0", "05/1"]
    assert len(used.played) == 12, "three groups, then three more"
    assert used.metrics == {
        "dynamic_sampling/batches": 2.0,
        "dynamic_sampling/constant": 0.5,
        "dynamic_sampling/discarded": 0.5,
    }


def test_groups_beyond_are_cut() -> None:  # rule 3
    kept, used = sample(DynamicSampling(batch=4), [SOLVED, *[DIFFER] * 6])
    assert [name.partition("/")[0] for name in kept[::2]] == ["01", "02", "03"]
    assert used.metrics["dynamic_sampling/discarded"] == pytest.approx(4 / 7)
    assert used.metrics["dynamic_sampling/constant"] == pytest.approx(1 / 7)


def test_neutral() -> None:  # rule 2
    kept, used = sample(DynamicSampling(), [DIFFER])
    assert kept == [f"{play.group}/{play.sample}" for play in plays(0, 3)]
    assert used.metrics["dynamic_sampling/discarded"] == 0.0 and len(used.played) == 6


def test_cap() -> None:  # rule 4
    with told(NoSignal, "`outcome`") as caught:
        sample(DynamicSampling(max_batches=4), [SOLVED])
    assert "max_batches" in str(caught.value.remedy)
    with told(NoSignal, "1 batches, 1"):
        sample(DynamicSampling(max_batches=1), [SOLVED, DIFFER, FAILED])
    rare = [*[SOLVED] * 40, DIFFER]
    with pytest.raises(NoSignal, match="after 10 batches"):
        sample(DynamicSampling(), rare)
    for unlimited in (0, -1):
        assert len(sample(DynamicSampling(max_batches=unlimited), rare)[0]) == 6


@pytest.mark.parametrize("metric", ["outcome", "return", "score"])
def test_metrics(metric: str) -> None:  # rule 5
    kept, _ = sample(DynamicSampling(metric=metric), [SOLVED, DIFFER, (0.5, 0.25)])
    assert [name.partition("/")[0] for name in kept[::2]] == ["01", "02", "04"]


@pytest.mark.parametrize("metric", ["acuracy", "words"])
def test_unknown_metric(metric: str) -> None:  # rule 6
    with told(UnknownName, "outcome, return, score"):
        sample(DynamicSampling(metric=metric), [DIFFER])


def test_bad_options() -> None:  # rule 6
    with pytest.raises(RecipeError, match="batch"):
        DynamicSampling(batch=0)


def test_failed_episodes() -> None:  # rule 7
    kept, _ = sample(DynamicSampling(), [(1, None), DIFFER], groups=1)
    assert kept == ["01/0", "01/1"]


SETUP = {
    "environment": {"lengths": {"short": 2, "long": 3}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"runner": "vector", "tasks": 6, "group": 3},
    "training": {"iterations": 3},
    "evaluation": {"tasks": 4},
}


def run(folder: Path, *strategy: Any) -> list[dict[str, float]]:
    recipe = load([SETUP, {"strategy": list(strategy)}], [f"run={folder}"])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    return MetricsLog(folder).metrics.read()


def test_in_a_run(tmp_path: Path) -> None:  # rule 8
    plain, dynamic = run(tmp_path / "plain"), run(tmp_path / "dynamic", "dynamic_sampling")
    assert any(line["advantage/nonzero"] < 1 for line in plain)
    assert all(line["advantage/nonzero"] == 1 for line in dynamic)
    assert dynamic[-1]["environment_steps"] > plain[-1]["environment_steps"]
    assert any(line["dynamic_sampling/discarded"] > 0 for line in dynamic)
