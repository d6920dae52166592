"""RAE, for every input; hand-derived numbers are in golden.yaml.

1. Batch after batch equals one loop over episodes.
2. The order of rows changes nothing, nor do rows of weight 0.
3. In a zero-sum game the advantages of the two agents sum to 0.
4. The baseline does not depend on the episode: the mean gradient on a bandit is the true one.
5. A resumed run continues with the same baselines.
6. Tables in which only some rows have a game, and bad options, are refused.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.data import Batch, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import part
from palaestra.systems.rae import RoleAdvantage
from tests.parts.episodes import NETWORK, assert_resumes
from tests.parts.small_tables import at
from tests.parts.tables import close, quick, shuffled, tables

few = settings(max_examples=8, deadline=None, derandomize=True)  # of each estimator


def games(rewards: list[Any], names: list[str] | None = None) -> StepTable:
    """Agent 0 wins what agent 1 loses."""
    size = len(rewards)
    names = names or [f"{k}/0" for k in range(size)]
    return StepTable(
        group=[name.split("/")[0] for name in names for _ in range(2)],
        trajectory=[name for name in names for _ in range(2)],
        agent=["0", "1"] * size,
        turn=[0, 1] * size,
        reward=[sign * reward for reward in rewards for sign in (1, -1)],
    )


@quick
@given(st.lists(st.lists(st.sampled_from([-1.0, 0.5, 2.0]), min_size=1, max_size=12), min_size=1, max_size=4))
def test_rae_is_a_loop_over_episodes(batches: list[list[float]]) -> None:  # rules 1, 3
    first, later = RoleAdvantage(alpha=0.9), RoleAdvantage(alpha=0.9, order="compare_first")
    b = 0.0
    for rewards in batches:
        table, expected, before = games(rewards), [], []
        for reward in rewards:
            before.append(reward - b)
            b = 0.9 * b + 0.1 * reward
            expected.append(reward - b)
        found, other = first(table, at()), later(table, at())
        assert close(found[::2], expected) and close(other[::2], before)
        assert torch.equal(found[::2], -found[1::2])
        assert close(found, 0.9 * other.double())
    assert first.baselines[("0",)] == -first.baselines[("1",)] == pytest.approx(b)
    assert first.update(Batch.of((), table), at())["advantage/baseline/0"] == pytest.approx(b)


@few
@given(tables(), tables(), st.integers(0, 10**6), st.sampled_from(["episode", "batch"]))
def test_rae_sees_no_order_of_rows(one: StepTable, two: StepTable, seed: int, step: Any) -> None:  # rule 2
    whole, mixed = RoleAdvantage(step=step), RoleAdvantage(step=step)
    for table in (one, two):
        order = shuffled(table, seed)
        padded = table.take(torch.cat([order, order[:2]]))
        weight = torch.ones(len(padded))
        weight[-2:] = 0
        found = mixed(padded.replace(row_weight=weight, reward=torch.where(weight > 0, padded["reward"], 1e3)), at())
        assert close(found[: len(table)], whole(table, at())[order])
        assert not found[len(table) :].any()
    assert whole.baselines == pytest.approx(mixed.baselines)


def test_rae_takes_neighbors_of_different_tasks() -> None:  # rule 2
    mixed = RoleAdvantage(alpha=0.5)
    found = mixed(games([1, 2, 4], ["0/9", "0/10", "1/9"]), at())
    assert found[::2].tolist() == [0.5, 2 - (0.5 * (0.25 + 2) + 1), 4 - (0.25 + 2)]


@pytest.mark.parametrize("order", ["update_first", "compare_first"])
def test_rae_is_unbiased(order: Any) -> None:  # rule 4
    """All four pairs of actions in two episodes of a bandit with two arms, P(1) = 0.3, with rewards 1 and −0.5."""
    p, pay = 0.3, {1: 1.0, 0: -0.5}
    score = {1: 1 - p, 0: -p}  # the derivative of log p by the logit of arm 1
    gradient = 0.0
    for acts in itertools.product((0, 1), repeat=2):
        rae = RoleAdvantage(alpha=0.8, order=order)
        rae.baselines = {("x",): 3.0}
        table = StepTable(
            group=["g"] * 2, trajectory=["g/0", "g/1"], agent=["x"] * 2, turn=[0, 0], reward=[pay[a] for a in acts]
        )
        found = rae(table, at()).tolist()
        chance = np.prod([p if act else 1 - p for act in acts])
        gradient += float(chance) * sum(a * score[act] for a, act in zip(found, acts, strict=True)) / 2
    assert gradient == pytest.approx((0.8 if order == "update_first" else 1.0) * p * (1 - p) * 1.5, abs=1e-6)


def test_rae_resumes(tmp_path: Path) -> None:  # rule 5
    whole, parts = RoleAdvantage(), RoleAdvantage()
    first, second = games([1, 1, -1]), games([2, -1])
    whole(first, at())
    parts(first, at())
    path = tmp_path / "state.pt"
    torch.save(parts.state_dict(), path)
    again = RoleAdvantage()
    again.load_state_dict(torch.load(path))
    assert torch.equal(again(second, at()), whole(second, at()))
    assert again.state_dict() == whole.state_dict()


@pytest.mark.slow
def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 5
    assert_resumes([NETWORK, {"advantage": [{"rae": {"alpha": 0.9}}]}], tmp_path, monkeypatch, "advantage.0.state.pt")


def test_what_rae_refuses() -> None:  # rule 6
    with pytest.raises(InvalidData, match="rows have no game"):
        RoleAdvantage()(games([1, 2]).replace(game=["a", "a", None, None]), at())
    for alpha in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="alpha"):
            part("advantage", "rae").check({"alpha": alpha}, where="advantage: rae")
