"""Rewards: (1) the outcome stands on the last row in time, whatever the order of rows; (2) padding gets nothing; (3) a
trajectory without outcome is named; (4) a penalty needs no column when every action was readable; (5) `cut_outcome`
fills outcomes of cut trajectories and touches nothing else; (6) for rewards that read outcomes, a trajectory that a
limit has cut off before the environment judged it has failed; (7) so it has for every other part that reads outcomes.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given

from palaestra import registry
from palaestra.algebra import total_return
from palaestra.data import Iteration, StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.rewards import cut_outcome, environment, invalid_penalty, outcome
from palaestra.registry.bound import BoundPart, bind
from palaestra.systems.multi_turn_guide import dense_normalized
from palaestra.systems.ppr.renorm import renorm
from tests.messages import told
from tests.parts.tables import quick, tables

TEAM = {
    "group": ["g"] * 4,
    "trajectory": ["a", "a", "a", "b"],
    "agent": ["x", "y", "x", "x"],
    "turn": [2, 1, 0, 0],
    "reward": [5.0, 5.0, 5.0, 5.0],
    "outcome": [1.0, 1.0, 1.0, 0.5],
}


def test_last_in_time() -> None:  # rule 1
    assert outcome(StepTable(**TEAM)).tolist() == [1.0, 0.0, 0.0, 0.5]
    assert outcome(StepTable(**TEAM), by=("trajectory", "agent")).tolist() == [1.0, 1.0, 0.0, 0.5]


@quick
@given(tables())
def test_return_is_the_outcome(table: StepTable) -> None:  # rule 1
    assert torch.equal(total_return(table.replace(reward=outcome(table))), table["outcome"])
    assert torch.equal(environment(table), table["reward"])


def test_padding_gets_nothing() -> None:  # rule 2
    table = StepTable(**TEAM, row_weight=[0.0, 1.0, 1.0, 1.0])
    assert outcome(table).tolist() == [0.0, 1.0, 0.0, 0.5]


def test_missing_outcome_is_named() -> None:  # rule 3
    with told(InvalidData, "trajectory b"):
        outcome(StepTable(**{**TEAM, "outcome": [1.0, 1.0, 1.0, float("nan")]}))
    with pytest.raises(MissingColumn, match="outcome"):
        outcome(StepTable(**{**TEAM, "outcome": None}))


def test_penalty() -> None:  # rule 4
    table = StepTable(**TEAM, invalid=[True, False, False, True])
    assert invalid_penalty(table, coefficient=0.5).tolist() == [4.5, 5.0, 5.0, 4.5]
    assert invalid_penalty(StepTable(**TEAM)).tolist() == [5.0] * 4
    with pytest.raises(RecipeError, match="coefficient"):
        invalid_penalty(table, coefficient=-1.0)


def test_unfinished_trajectories_have_no_outcome_yet() -> None:  # rule 3
    flags = {"terminated": [True, True, True, False], "truncated": [False] * 4}
    table = StepTable(**{**TEAM, "outcome": [1.0, 1.0, 1.0, float("nan")]}, **flags)
    assert outcome(table).tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(InvalidData, match="it has no outcome"):
        outcome(table.replace(terminated=[True] * 4))


def game(rewards, outcome, **columns):
    size = len(rewards)
    return StepTable(group=["g"] * size, trajectory=[0] * size, agent=["x"] * size, turn=range(size), reward=rewards,
                     outcome=[outcome] * size, **columns)  # fmt: skip


def test_cut_outcomes():  # rule 5
    table = game([0.0] * 6, 1.0).replace(
        trajectory=[0, 0, 1, 1, 2, 2],
        outcome=[np.nan, np.nan, 1.0, 1.0, np.nan, np.nan],
        truncated=[0, 1, 0, 1, 0, 0],
    )
    found = cut_outcome(table)
    assert set(found) == {"outcome"}
    assert found["outcome"][:4].tolist() == [0, 0, 1, 1]
    assert bool(found["outcome"][4:].isnan().all()), "an end that the environment did not judge is not filled"
    assert cut_outcome(table, value=-1.0)["outcome"][:2].tolist() == [-1, -1]
    whole = table.replace(outcome=torch.ones(6))
    assert torch.equal(cut_outcome(whole)["outcome"], whole["outcome"])


def test_cut_trajectories_have_failed() -> None:  # rule 6
    table = game([1.0, 0.0], np.nan, terminated=[False, False], truncated=[False, True], process=[0.5, np.nan])
    assert outcome(table).tolist() == [0, 0]
    assert renorm(table).tolist() == renorm(table.replace(outcome=torch.zeros(2))).tolist()
    assert dense_normalized(table, maximum=2).tolist() == [0.5, 0]
    judged = table.replace(terminated=[False, True], truncated=[False, False])
    for reward in (outcome, renorm):
        with pytest.raises(InvalidData):
            reward(judged)


WITH_OPTIONS = {  # parts that read outcomes with these options alone
    ("advantage", "bnpo"): {"rewards": ["outcome"]},
    ("advantage", "canon"): {"schedule": "accuracy", "metric": "length"},
    ("reward", "dense_normalized"): {"maximum": 2},
    ("reward", "role_mix"): {"team": "outcome"},
    ("selection", "resample_on_correct"): {"keep": 2, "least_failures": 1, "least_successes": 1},
    ("weights", "difficulty"): {"column": "outcome", "family": None},
}
SLOTS = ("reward", "selection", "advantage", "weights")


def reads_outcomes(slot: str, name: str) -> bool:
    made = registry.part(slot, name)
    return bool({"outcome", "outcome?"} & {*(made.reads or ()), *chain(*made.reads_if.values())})


READERS = [(slot, name) for slot in SLOTS for name in registry.names(slot) if reads_outcomes(slot, name)]
READERS.remove(("reward", "cut_outcome"))


def episodes(outcome: float) -> StepTable:
    """Two groups of three trajectories; the second of each failed, and a limit cut off the third."""
    names = [f"{group}{number}" for group in "gh" for number in range(3)]
    results = {name: (1.0, 0.0, outcome)[int(name[1])] for name in names}
    rows = [(name, turn) for name in names for turn in range(2)]
    flags = {"truncated": [name[1] == "2" and turn == 1 for name, turn in rows]}
    flags["terminated"] = [name[1] != "2" and turn == 1 for name, turn in rows]
    ones: dict[str, list[float]] = dict.fromkeys(("format", "tool_call", "answer", "entities"), [1.0] * len(rows))
    return StepTable(
        group=[name[0] for name, _ in rows],
        trajectory=[name for name, _ in rows],
        agent=["main"] * len(rows),
        turn=[turn for _, turn in rows],
        reward=[results[name] if turn and results[name] == 1 else 0.0 for name, turn in rows],
        outcome=[results[name] for name, _ in rows],
        process=[np.nan if turn and name[1] != "2" else 0.5 for name, turn in rows],
        progress=[0.5 * turn for _, turn in rows],
        tool_error=[0.0] * len(rows),
        invocation=[0] * len(rows),
        **flags,
        **ones,
    )


@pytest.mark.parametrize(("slot", "name"), READERS)
def test_cut_trajectories_have_failed_for_every_part(slot: str, name: str) -> None:  # rule 7
    written = BoundPart(name=name, options=WITH_OPTIONS.get((slot, name), {}))

    def result(table: StepTable) -> object:
        found = bind(slot, written).started().at(Iteration())(table)
        return {key: value.tolist() for key, value in found.items()} if isinstance(found, dict) else found.tolist()

    assert result(episodes(np.nan)) == result(episodes(0.0))


def test_every_part_that_reads_outcomes_is_tried() -> None:  # rule 7
    assert {name for _, name in READERS} > {
        "outcome",
        "filtered",
        "flow_grpo",
        "progress",
        "tool_use",
        "constant_groups",
    }
