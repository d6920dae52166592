"""Resampling of correct trajectories:

1. Hand-derived penalties, quotas and indices.
2. `keep` trajectories of each group stay, failures and successes where there are both, in their order.
3. Groups that ended alike or are too small are removed first; at least one group always stays.
4. With `keep` as large as the group nothing changes, bit for bit.
5. "sample" prefers clean successes, depends on its seed, and not on the order of rows.
6. Impossible numbers are refused.
7. It runs in a recipe.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.recipe import load
from palaestra.systems.grpo_roc import quotas, resample, resample_on_correct, tool_penalty
from palaestra.training.start import train
from tests.parts.tables import quick

RIGHT = np.array([True] * 5 + [False] * 3)
PENALTY = np.array([0, 0.5, 0.5, 0.4, 0, 9, 9, 9])


def at(seed: int = 0) -> Iteration:
    return Iteration({}, 0, seed=seed, temperature=1.0, token_budget=64)


def episode(sample: int, won: float | None, *, errors: int = 0, group: str = "g", turns: int = 4) -> Trajectory:
    """Calls in all turns but the last, `errors` of them failed; then an answer."""
    steps = []
    for turn in range(turns):
        last = turn == turns - 1
        info = {"tool_call": float(not last), "tool_error": float(turn < errors), "answer": float(last)}
        seen, act = Observation(text=str(turn)), Action(value=sample * 10 + turn)
        reward = won or 0.0
        steps.append(
            Step(agent="x", turn=turn, action=act, observation=seen, reward=reward if last else 0.0, info=info)
        )
    return Trajectory(task=Task(env="t", seed=0), group=group, sample=sample, steps=steps, outcome=won)


# ---- numbers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("calls", "errors", "answers", "turns", "expected"),
    [(4, 0, 1, 4, 0), (0, 0, 1, 1, 0.5), (4, 2, 1, 4, 0.5), (5, 1, 2, 5, 0.4), (2, 0, 1, 2, 0), (0, 0, 0, 3, 1.5),
     (1, 0, 9, 4, 1)],
)  # fmt: skip
def test_penalties(calls: int, errors: int, answers: int, turns: int, expected: float) -> None:  # rule 1
    found = tool_penalty(calls=calls, errors=errors, answers=answers, turns=turns)
    assert found == pytest.approx(expected)


def test_places_by_hand() -> None:  # rule 1
    assert quotas(3, 5, keep=4, minima=(1, 1)) == (2, 2)
    assert resample(RIGHT, PENALTY, keep=4, minima=(1, 1)) == [0, 4, 5, 6]


@pytest.mark.parametrize(
    ("failures", "successes", "keep", "minima", "expected"),
    [(5, 3, 4, (1, 1), (3, 1)), (1, 7, 4, (1, 1), (1, 3)), (1, 31, 16, (2, 2), (1, 15)), (31, 1, 16, (2, 2), (15, 1)),
     (3, 29, 16, (4, 2), (3, 13)), (29, 3, 16, (2, 2), (14, 2)), (0, 8, 4, (2, 2), (0, 4)), (8, 0, 4, (2, 2), (4, 0))],
)  # fmt: skip
def test_quotas(
    failures: int, successes: int, keep: int, minima: tuple[int, int], expected: tuple[int, int]
) -> None:  # rule 1
    assert quotas(failures, successes, keep=keep, minima=minima) == expected


@quick
@given(st.integers(0, 20), st.integers(0, 20), st.data())
def test_quotas_can_be_met(failures: int, successes: int, data: st.DataObject) -> None:  # rule 2
    total = failures + successes
    keep = data.draw(st.integers(1, total)) if total else 0
    least = data.draw(st.integers(0, keep))
    if keep:
        n0, n1 = quotas(failures, successes, keep=keep, minima=(least, data.draw(st.integers(0, keep - least))))
        assert n0 + n1 == keep and 0 <= n0 <= failures and 0 <= n1 <= successes


# ---- groups -----------------------------------------------------------------------------------------------
def chosen(table: StepTable, *, seed: int = 0, **options: Any) -> tuple[list[str], dict[str, float]]:
    """Names of the trajectories that stay, in the order of rows, and the metrics."""
    iteration = at(seed)
    kept = resample_on_correct(table, iteration, **options)
    names = [table.labels("trajectory")[code] for code in table["trajectory"].tolist()]
    assert all(
        len({bool(keep) for keep, other in zip(kept, names, strict=True) if other == name}) == 1 for name in names
    )
    return list(dict.fromkeys(name for name, keep in zip(names, kept, strict=True) if keep)), iteration.metrics


def groups() -> list[Trajectory]:
    """Two groups of 8, one with failures and successes and one with successes only; and a small group."""
    mixed = [episode(i, float(i < 5), errors=i % 3) for i in range(8)]
    alike = [episode(i, 1.0, group="h") for i in range(8)]
    return [*mixed, *alike, *(episode(i, float(i), group="small") for i in range(2))]


def test_groups() -> None:  # rules 2 and 3
    options: dict[str, Any] = {"keep": 4, "least_failures": 1, "least_successes": 1}
    table = StepTable.from_trajectories(groups())
    kept, metrics = chosen(table, **options)
    assert kept == ["g/0", "g/3", "g/5", "g/6"]
    assert metrics["resample/groups"] == pytest.approx(1 / 3)
    assert metrics["resample/penalty"] == pytest.approx((0 + 1 + 2 + 0 + 1) / 15)
    assert metrics["resample/penalty_kept"] == 0.0
    order = torch.arange(len(table)).flip(0)
    assert chosen(table.take(order), **options) == (kept[::-1], metrics)
    left = table.replace(row_weight=(table["group"] != 0).float())  # the mixed group was dropped before
    assert chosen(left, **options)[0] == ["h/0", "h/1", "h/2", "h/3"]
    assert chosen(table.replace(row_weight=torch.zeros(len(table))), **options) == ([], {})


def test_where_all_ended_alike() -> None:  # rule 3
    table = StepTable.from_trajectories([episode(i, 1.0, group="h") for i in range(12)])
    kept, metrics = chosen(table, keep=4)
    assert kept == ["h/0", "h/1", "h/2", "h/3"] and metrics == {"resample/groups": 0.0}
    assert bool((grpo(table.replace(row_weight=resample_on_correct(table, at(), keep=4).float())) == 0).all())


@pytest.mark.parametrize("mode", ["lowest", "sample"])
def test_neutral(mode: Any) -> None:  # rule 4
    table = StepTable.from_trajectories(
        [episode(i, float(i % 2), errors=i % 3, group=g) for g in "ab" for i in range(8)]
    )
    kept = resample_on_correct(table, at(), keep=8, mode=mode)
    assert torch.equal(table.row_weight * kept, table.row_weight)


def test_the_rest_is_compared_as_if_it_were_alone() -> None:  # rule 2
    played = [episode(i, float(i % 3 == 0), errors=i % 3, group=g) for g in "ab" for i in range(8)]
    table = StepTable.from_trajectories(played)
    kept, _ = chosen(table, keep=4)
    alone = StepTable.from_trajectories([t for t in played if t.id in kept])
    weight = resample_on_correct(table, at(), keep=4)
    assert torch.equal(grpo(table.replace(row_weight=weight.float()))[weight], grpo(alone))


def test_samples() -> None:  # rule 5
    played = [episode(i, float(i < 8), errors=3 * (i % 2)) for i in range(16)]
    table = StepTable.from_trajectories(played)
    drawn = [chosen(table, seed=seed, keep=8, mode="sample")[0] for seed in range(200)]
    counts = Counter(int(name.removeprefix("g/")) for kept in drawn for name in kept)
    right = {t.id for t in played if t.outcome == 1}
    assert all(len(right.intersection(kept)) == 4 and len(kept) == 8 for kept in drawn)
    assert min(counts[i] for i in (0, 2, 4, 6)) > 2 * max(counts[i] for i in (1, 3, 5, 7))
    assert all(70 < counts[i] < 130 for i in range(8, 16))
    again, _ = chosen(table.take(torch.arange(len(table)).flip(0)), seed=7, keep=8, mode="sample")
    assert again == drawn[7][::-1]


# ---- what is refused --------------------------------------------------------------------------------------
def test_bad_input() -> None:  # rule 6
    with pytest.raises(RecipeError, match=r"sum to more than `keep: 4`(.|\n)*Lower the minima"):
        chosen(StepTable.from_trajectories(groups()), keep=4, least_failures=3, least_successes=2)
    with pytest.raises(RecipeError, match="least_failures"):
        chosen(StepTable.from_trajectories(groups()), least_failures=-1)
    with pytest.raises(InvalidData, match=r"the largest group has .8.(.|\n)*rollout.group=18"):
        chosen(StepTable.from_trajectories(groups()), keep=9)
    with pytest.raises(InvalidData, match="`keep: 9` is more than the 8 trajectories"):
        resample(RIGHT, PENALTY, keep=9)
    for counts in ({"calls": -1}, {"errors": -1}, {"errors": 3}, {"answers": -1}, {"turns": 0}):
        with pytest.raises(InvalidData, match=r"calls(.|\n)*tool_call"):
            tool_penalty(**{"calls": 2, "errors": 1, "answers": 1, "turns": 2, **counts})
    for won, said in ((None, "none"), (0.5, "0.5")):
        with pytest.raises(InvalidData, match=f"trajectory g/1(.|\n)*its outcome is {said}, neither 0 nor 1"):
            table = StepTable.from_trajectories([episode(0, 1.0), episode(1, won), episode(2, 0.0)])
            chosen(table, keep=2, least_failures=1, least_successes=1)


def test_it_runs(tmp_path: Path) -> None:  # rule 7
    small = ["rollout.tasks=4", "training.iterations=2", "evaluation.tasks=4", "warm_start.episodes=8"]
    recipe = load(["setups/toolcalc.yaml", "grpo_roc/method.yaml"], [f"run={tmp_path / 'run'}", *small])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("resample/penalty_kept", 9) <= line.get("resample/penalty", 0) for line in lines)
    assert all("tools/failed/errors" in line for line in lines)
