"""E-GRPO.

1. A success earns 1, a failure alpha times its share relative to the group's best; then GRPO as published.
2. A malformed trajectory earns nothing, but its share still counts for the group's best.
3. alpha 0 is GRPO on the outcome, bit for bit.
4. A near miss stays below a success; the reward is on the last row, and the raw outcome does not change.
5. In a group that fails altogether trajectories still differ.
6. Order of rows and padding change nothing.
7. Shares that are missing or outside [0, 1], missing outcomes, and alpha outside [0, 1) are refused.
8. Hopsearch gives the share of entities that the agent itself named; it correlates with success.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import Action, StepTable, Task
from palaestra.envs.probes.hopsearch import HopSearch
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.e_grpo import entity_credit
from tests.parts.tables import close, quick, shuffled, tables


def group(shares: list[float], outcome: list[float], **columns: Any) -> StepTable:
    """Searches of one question, one row each."""
    base: dict[str, Any] = {
        "group": ["g"] * len(shares),
        "trajectory": [f"t{i}" for i in range(len(shares))],
        "agent": ["x"] * len(shares),
        "turn": [0] * len(shares),
        "reward": outcome,
        "entities": shares,
        "outcome": outcome,
    }
    return StepTable(**{**base, **columns})


def shared(table: StepTable) -> StepTable:
    """A random table with shares, in eighths."""
    return table.replace(entities=table["process"], outcome=table["outcome"])


def credited(table: StepTable, **options: Any) -> StepTable:
    return table.replace(**entity_credit(table, **options))


def test_1_published_numbers() -> None:
    table = credited(group([1, 0.75, 0.5, 0], [1, 0, 0, 0]))
    assert close(table["reward"], [1, 0.225, 0.15, 0], tolerance=1e-6)
    assert close(grpo(table, ddof=0), [1.6938, -0.3065, -0.5001, -0.8872])
    assert table["entity_credit"].tolist() == [1, 0.75, 0.5, 0]


def test_2_malformed() -> None:
    table = credited(group([0.5, 0.25, 0, 0.5], [0, 0, 0, 0], invalid=[0, 0, 0, 1.0]))
    assert close(table["reward"], [0.3, 0.15, 0, 0], tolerance=1e-6)
    assert close(grpo(table, ddof=0), [1.5075, 0.3015, -0.9045, -0.9045])
    cut = group([0.5, 1.0], [0, 0], truncated=[False, True])
    assert close(entity_credit(cut)["reward"], [0.15, 0], tolerance=1e-6)
    assert close(entity_credit(cut, malformed=())["reward"], [0.15, 0.3], tolerance=1e-6)


@quick
@given(table=tables())
def test_3_without_credit_it_is_grpo(table: StepTable) -> None:
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool)
    ends[order] = last
    table = shared(table).replace(reward=torch.where(ends, table["outcome"], 0.0))
    assert torch.equal(grpo(credited(table, alpha=0.0)), grpo(table))


def test_4_rows() -> None:
    table = group(
        [0, 0.5, 0.5, 0, 0, 1],
        [0, 0, 0, 0, 0, 0],
        trajectory=["a", "a", "a", "b", "b", "b"],
        turn=[2, 1, 0, 0, 1, 2],
        reward=[3.0] * 6,
    )
    found = credited(table, alpha=0.99)
    assert close(found["reward"], [0.495, 0, 0, 0, 0, 0.99], tolerance=1e-6)
    assert torch.equal(found["outcome"], table["outcome"])
    assert float(found["reward"].max()) < 1


def test_5_groups_that_fail() -> None:
    table = group([0.25, 0.5, 0.25, 0], [0, 0, 0, 0])
    assert not grpo(table).any()
    assert bool((grpo(credited(table))[[1, 3]].sign() == torch.tensor([1, -1])).all())
    assert not entity_credit(group([0, 0], [0, 0]))["reward"].any()


@quick
@given(table=tables(), seed=st.integers(0, 10**6))
def test_6_order_and_padding(table: StepTable, seed: int) -> None:
    table, order = shared(table), shuffled(table, seed)
    table = table.replace(entities=table["process"].clamp(0, 1))
    found = entity_credit(table)["reward"]
    assert torch.equal(entity_credit(table.take(order))["reward"], found[order])
    size = len(table)
    doubled = table.take(torch.arange(size).repeat(2))
    ghost = torch.arange(2 * size) >= size
    padded = doubled.replace(row_weight=(~ghost).float(), entities=torch.where(ghost, 9.0, doubled["entities"]))
    assert torch.equal(entity_credit(padded)["reward"], torch.cat([found, torch.zeros(size)]))


def test_7_refusals() -> None:
    table = group([1, 0.5], [1, 0])
    with pytest.raises(InvalidData, match=r"it is 1.5, outside \[0, 1\]") as caught:
        entity_credit(group([1, 1.5], [1, 0]))
    assert "`entities`, row 1" in caught.value.where and "named_share" in caught.value.remedy
    with pytest.raises(InvalidData, match="it is missing") as caught:
        entity_credit(table.replace(outcome=[1.0, float("nan")]))
    assert "`outcome`" in caught.value.where
    with pytest.raises(MissingColumn, match="no column `entities`"):
        entity_credit(table.replace(entities=None))
    for alpha in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="alpha"):
            entity_credit(table, alpha=alpha)


# ---- hopsearch --------------------------------------------------------------------------------------------
def shares(env: HopSearch, *texts: Any) -> list[float]:
    found = []
    for text in texts:
        action = Action(text=text) if isinstance(text, str) else Action(value=text)
        found.append(env.step({"player": action}).info["entities"]["player"])
    return found


def test_8_what_the_agent_named() -> None:
    env = HopSearch(hops=(2, 2), noise=0.0)
    for seed in range(5):
        result = env.reset(Task(env="hopsearch", seed=seed))
        steps = [env.expert("player")]
        while result.observations:
            result = env.step({"player": steps[-1]})
            if result.observations:
                steps.append(env.expert("player"))
        assert result.info["entities"] == {"player": 1.0} and result.info["success"]
        for actions in ([step.text for step in steps], [step.value for step in steps]):
            env.reset(Task(env="hopsearch", seed=seed))
            assert shares(env, *actions) == [0, 0.5, 1]
    env.reset(Task(env="hopsearch", seed=0))
    middle = (steps_of(env)[1].text or "").split()[1]
    env.reset(Task(env="hopsearch", seed=0))
    assert shares(env, f"it may be {middle.upper()}, who knows") == [0.5]  # unreadable, but the entity is named


def steps_of(env: HopSearch) -> list[Action]:
    steps = [env.expert("player")]
    env.step({"player": steps[0]})
    return [*steps, env.expert("player")]


def test_8_it_goes_with_success() -> None:
    env, draw = HopSearch(hops=(2, 4), noise=0.2, max_turns=10), random.Random(0)
    pairs = []
    for task in env.tasks("train", 300, 0):
        result = env.reset(task)
        while result.observations:
            legal = list(result.observations["player"].legal or ())
            wild = draw.random() < 0.15
            result = env.step({"player": Action(value=draw.choice(legal)) if wild else env.expert("player")})
        pairs.append((result.info["entities"]["player"], float(result.info["success"])))
    share, success = np.array(pairs).T
    assert 0.2 < success.mean() < 0.8 and np.corrcoef(share, success)[0, 1] > 0.4
