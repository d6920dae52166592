"""StepTable: (1) columns of names, numbers and flags; (2) what is missing or wrong is refused by name; (3) keys, units
and time; (4) padding stands aside; (5) `take` and `replace` keep everything else; (6) episodes become rows, in an order
that does not depend on their arrival; (7) an empty table is a table; (8) what the library
marks becomes columns, and numbers of the same names in info do not; (9) an exchanged column is known anew, and all
others are shared.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from palaestra.data import Action, Marks, Observation, Step, StepTable, Task, Trajectory, rows_of
from palaestra.data.columns import numeric
from palaestra.data.trajectory import MARKS, noted
from palaestra.errors import InvalidData, MissingColumn
from palaestra.parts.estimators import dr_grpo, grpo, reinforce
from palaestra.registry.column_names import FROM_OUTPUTS
from tests.messages import told
from tests.parts.tables import quick, shuffled, tables

BASE: dict[str, Any] = {
    "group": ["g", "g", "h"],
    "trajectory": ["a", "a", "b"],
    "agent": ["x", "y", "x"],
    "turn": [0, 1, 0],
    "reward": [0.0, 1.0, 2.0],
}


def table(**columns: Any) -> StepTable:
    return StepTable(**{**BASE, **columns})


# ---- columns ----------------------------------------------------------------------------------------------
def test_kinds_of_columns() -> None:  # rule 1
    made = table(
        terminated=[0, 1, 1], version=[1.0, 2.0, 2.0], duration=[1, 2, 3], reward=np.arange(3), note=list("pqp")
    )
    assert made["terminated"].dtype == torch.bool and made["version"].dtype == torch.int64
    assert made["reward"].dtype == torch.float32 and made["duration"].dtype == torch.int64
    assert made["note"].tolist() == [0, 1, 0] and made.labels("note") == ["p", "q"]
    assert made.labels("agent") == ["x", "y"] and made["token_count"].tolist() == [1, 1, 1]
    assert "stratum" not in made and "note" in made and len(made) == 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_long_text_takes_no_memory_for_the_others(nested: bool) -> None:  # rule 1
    notes = ["x" * 1_000_000, *"yz" * 500]
    tracemalloc.start()
    try:
        is_number = numeric([[note] for note in notes] if nested else notes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not is_number and peak < 1_000_000  # it was 4 GB: each text as long as the longest


def test_names_may_be_anything_hashable() -> None:  # rule 1
    made = table(state_key=[(1, "a"), None, (1, "a")], stratum=torch.tensor([5, 5, 9]), team=np.array([2, 2, 1]))
    assert made["state_key"].tolist() == [0, -1, 0]
    assert made.labels("stratum") == [5, 9] and made.labels("team") == [1, 2]


WRONG = [
    ({"reward": None}, "the column `reward` is required"),
    ({"agent": ["x", "y"]}, "column `agent`"),
    ({"row_weight": [1.0, -1.0, 1.0]}, "a weight is negative"),
    ({"token_count": [1, 0, 1]}, "a row has no response token"),
    ({"entropy_old": [0.5, 0.5]}, "it has 2 values for 3 tokens"),
    ({"row_entropy": [0.5, float("nan"), 0.5]}, "column `row_entropy`, trajectory a, turn 1"),
    ({"duration": [0.5, float("inf"), 0.5]}, "column `duration`"),
    ({"turn": ["a", "b", "c"]}, "column `turn`"),
    ({"trajectory": ["a", "b", "b"]}, "have different groups"),
    ({"group": [None, None, "h"]}, "2 of 3 rows have no value"),
    ({"outcome": [None, 1.0, 1.0]}, "column `outcome`"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_columns(columns: dict[str, Any], message: str) -> None:  # rule 2
    with pytest.raises((InvalidData, MissingColumn), match=message):
        table(**columns)


def test_missing_column_names_the_nearest() -> None:  # rule 2
    with pytest.raises(MissingColumn) as caught:
        table(state_key=list("abc"))["state_keys"]
    assert caught.value.options[0] == "state_key"


def test_not_given_is_allowed_where_it_means_something() -> None:  # rule 2
    made = table(outcome=[float("nan"), 1.0, 0.0], row_value=[float("nan")] * 3, logprob_reference=[float("nan")] * 3)
    assert made["outcome"].isnan().tolist() == [True, False, False]


# ---- keys, units, time ------------------------------------------------------------------------------------
def test_keys() -> None:  # rule 3
    made = table(state_key=["s", None, None], score=[0.25, 0.75, 0.25], step=[-1, -1, 7], huge=[2**60, 1, 2**60])
    assert made.key().size == 1 and made.key("group").size == 2
    assert made.key("group", "agent").size == 3
    assert made.key("state_key").size == 3, "None is unlike any other row"
    assert made.key("score").codes.tolist() == [0, 1, 0], "fractions are not cut off"
    assert made.key("step").size == 2 and made.key("huge", "agent").size == 2
    assert made.key("group") is made.key("group")
    with told(MissingColumn, "value in it"):
        table(state_key=[None] * 3).key("state_key")


def test_units() -> None:  # rule 3
    made = table(token_count=[2, 1, 3])
    assert made.unit("row") is None
    assert made.unit("token").weights.tolist() == [2.0, 1.0, 3.0]
    assert made.unit("trajectory").size == 2
    assert made.tokens == 6 and made.token_row.tolist() == [0, 0, 1, 2, 2, 2]


@quick
@given(tables())
def test_time(some: StepTable) -> None:  # rule 3
    order, last = some.take(shuffled(some, 3)).timeline("trajectory")
    made = some.take(shuffled(some, 3))
    turn, chain = made["turn"][order].tolist(), made["trajectory"][order].tolist()
    for place in range(len(order)):
        ends = place + 1 == len(order) or chain[place + 1] != chain[place]
        assert bool(last[place]) == ends
        assert ends or turn[place] < turn[place + 1]


def test_padding_stands_aside() -> None:  # rule 4
    made = table(trajectory=["a", "a", "a"], group=["g"] * 3, turn=[0, 1, 2], row_weight=[1.0, 0.0, 1.0])
    order, last = made.timeline("trajectory")
    assert order.tolist() == [0, 2, 1] and last.tolist() == [False, True, True]
    assert reinforce(made, gamma=0.5).tolist() == [1.0, 0.0, 2.0]


# ---- other tables -----------------------------------------------------------------------------------------
@quick
@given(tables())
def test_take(some: StepTable) -> None:  # rule 5
    index = shuffled(some, 1)
    taken = some.take(index)
    for name in ("reward", "turn", "terminated", "row_value", "token_count"):
        assert torch.equal(taken[name], some[name][index])
    for name in ("group", "agent", "state_key"):
        assert [taken.labels(name)[c] for c in taken[name]] == [some.labels(name)[c] for c in some[name][index]]
    pieces = some["value_old"].split(some["token_count"].tolist())
    assert torch.equal(taken["value_old"], torch.cat([pieces[row] for row in index]))
    back = taken.take(torch.argsort(index))
    assert all(torch.equal(back[name], some[name]) for name in ("reward", "value_old", "token_count"))


def test_replace() -> None:  # rule 5
    made = table(state_key=["s", None, "t"], outcome=[1.0, 1.0, 0.0])
    other = made.replace(reward=torch.ones(3), outcome=None, process=[0.5, 0.5, 0.5])
    assert other["reward"].tolist() == [1.0] * 3 and "outcome" not in other and "process" in other
    assert other["state_key"].tolist() == [0, -1, 1] and made["reward"].tolist() == [0.0, 1.0, 2.0]


def test_per_token() -> None:
    made = table(token_count=[2, 1, 1])
    rows, tokens = torch.tensor([1.0, 2.0, 3.0]), torch.arange(4).float()
    assert made.per_token(rows).tolist() == [1.0, 1.0, 2.0, 3.0]
    assert made.per_token(tokens).tolist() == tokens.tolist()
    assert table().per_token(rows).tolist() == rows.tolist()
    with told(InvalidData, "5 values fit"):
        made.per_token(torch.zeros(5))


# ---- episodes ---------------------------------------------------------------------------------------------
def episode(group: str, sample: int, rewards: list[float], **fields: Any) -> Trajectory:
    steps = [
        Step(
            agent="solver",
            turn=turn,
            reward=reward,
            action=Action(text="go", tokens=np.array([5, 6], np.int32), logprobs=np.array([-1.0, -2.0])),
            observation=Observation(text="here", state_key=f"s{turn}"),
            policy="main",
            terminated=turn + 1 == len(rewards),
            info={"invalid": turn == 0, "note": "text is no number"},
        )
        for turn, reward in enumerate(rewards)
    ]
    return Trajectory(task=Task(env="e", seed=0), group=group, sample=sample, steps=steps, **fields)


def test_from_episodes() -> None:  # rule 6
    one, two = episode("g", 0, [0.0, 1.0], outcome=1.0), episode("g", 1, [0.5])
    made = StepTable.from_trajectories([two, one])
    assert made.labels("trajectory") == ["g/0", "g/1"]
    assert made["reward"].tolist() == [0.0, 1.0, 0.5] and made["turn"].tolist() == [0, 1, 0]
    assert made["outcome"].isnan().tolist() == [False, False, True]
    assert made["token_count"].tolist() == [2, 2, 2] and made["logprob_behavior"].tolist() == [-1.0, -2.0] * 3
    assert [made.labels("next_key")[c] for c in made["next_key"][:1]] == ["s1"] and made["next_key"][1] == -1
    assert made["invalid"].tolist() == [1, 0, 1] and made["terminated"].tolist() == [False, True, True]
    assert [row.start for row in rows_of([two, one])] == [0, 2, 4]
    again = StepTable.from_trajectories([one, two])
    assert all(torch.equal(made[name].nan_to_num(), again[name].nan_to_num()) for name in made.names)


def test_silent_policies_have_no_logprobs() -> None:  # rule 6
    talking, silent = episode("g", 0, [1.0]), episode("g", 1, [1.0])
    silent.steps[0].action = Action(value=3)
    made = StepTable.from_trajectories([talking, silent])
    assert made["token_count"].tolist() == [2, 1] and made["logprob_behavior"].isnan().tolist() == [False, False, True]
    assert "logprob_behavior" not in StepTable.from_trajectories([silent])
    with pytest.raises(InvalidData, match="no step"):
        StepTable.from_trajectories([])


def test_groups_and_samples_stay_apart() -> None:  # rule 6
    made = StepTable.from_trajectories([episode("h", 0, [1.0]), episode("g", 0, [0.0]), episode("g", 1, [1.0])])
    assert dr_grpo(made).tolist() == [-0.5, 0.5, 0.0]


def test_empty() -> None:  # rule 7
    none = table().take(torch.zeros(0, dtype=torch.int64))
    assert len(none) == 0 and none.tokens == 0
    assert grpo(none).tolist() == [] and reinforce(none, level="token").tolist() == []


def _two(*, marks: Marks | None = None, **info: Any) -> StepTable:
    """The table of two acts, of which the second carries these marks and this info."""
    plain = Step(agent="x", turn=0, action=Action(text="a"), observation=Observation(text="o"))
    second = Step(agent="x", turn=1, action=Action(text="b"), observation=Observation(text="o"), info=info)
    second.marks = marks or Marks()
    return StepTable.from_trajectories([Trajectory(task=Task(env="e", seed=0), group="g", steps=[plain, second])])


@pytest.mark.parametrize("name", [*MARKS, *FROM_OUTPUTS, "act", "logprob_old", "advantage"])
def test_info_marks_nothing(name: str) -> None:  # rule 8
    told = _two(**{name: "leaf" if name == "node" else 5.0})
    if name == "node":
        return  # a label, which environments may tell where the library marks none
    assert name not in told and told.row_weight.tolist() == [1.0, 1.0]
    assert told.key("act").codes.tolist() == [0, 1]


@pytest.mark.parametrize("name", [name for name in MARKS if name != "node"])
def test_marks_are_columns(name: str) -> None:  # rule 8
    marked = _two(marks=Marks(**{name: 0.0 if name == "row_weight" else 1.0}), **{name: 5.0})
    assert marked[name].tolist() == ([1.0, 0.0] if name == "row_weight" else [0.0, 1.0])
    assert name not in _two()


def test_a_mark_is_of_its_step_alone() -> None:  # rule 8
    node = _two(marks=Marks(node="tree"), node="told")
    assert node.labels("node") == ["tree"] and node["node"].tolist() == [-1, 0]
    step = Step(agent="x", turn=0, action=Action(), observation=Observation(), info={"own": 1.0})
    copy = noted(step, foreign=1.0, hint=2.0)
    copy.mark(guided=1.0)
    assert (step.marks, step.info) == (Marks(), {"own": 1.0})
    assert (copy.marks, copy.info) == (Marks(foreign=1.0, guided=1.0), {"own": 1.0, "hint": 2.0})


# ---- exchanging columns: what is shared and what is known anew ------------------------------------------------
ROWS = {
    "group": ["g", "g", "g", "h"],
    "trajectory": ["a", "a", "b", "c"],
    "agent": ["x", "y", "x", "x"],
    "turn": [0, 1, 0, 0],
    "reward": [1.0, 0.0, 2.0, 3.0],
    "state_key": ["s", "t", "s", "s"],
    "token_count": [1, 2, 1, 1],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"row_weight": [1.0, 0.0, 1.0, 1.0]},
        {"turn": [1, 0, 0, 0]},
        {"state_key": ["s", "s", "t", "s"]},
        {"agent": ["x", "x", "x", "x"]},
        {"token_count": [2, 1, 1, 1]},
        {"group": ["g", "g", "g", "g"]},
        {"trajectory": ["a", "a", "a", "c"]},
        {"reward": [0.0, 0.0, 0.0, 1.0], "outcome": [1, 1, 0, 0]},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_an_exchanged_column_is_known_anew(changed: dict[str, list[object]]) -> None:  # rule 9
    first = StepTable(**ROWS)
    names = (("group",), ("group", "state_key"), ("trajectory",), ("trajectory", "agent", "turn"), ("act",))
    for known in names:  # asked before, so that answers could be kept
        first.key(*known), first.timeline(*known)
    assert len(first.token_row) == first.tokens
    found, built = first.replace(**changed), StepTable(**{**ROWS, **changed})
    for known in names:
        assert found.key(*known).codes.tolist() == built.key(*known).codes.tolist()
        assert found.key(*known).weights.tolist() == built.key(*known).weights.tolist()
        assert [part.tolist() for part in found.timeline(*known)] == [part.tolist() for part in built.timeline(*known)]
    assert found.token_row.tolist() == built.token_row.tolist()


def test_other_columns_are_shared() -> None:  # rule 9
    first = StepTable(**ROWS)
    found = first.replace(reward=[0.0] * 4)
    assert found["state_key"] is first["state_key"] and first["reward"].tolist() == [1.0, 0.0, 2.0, 3.0]


def test_what_replace_refuses() -> None:  # rule 2
    first = StepTable(**ROWS, logprob_behavior=[0.0] * 5)
    with pytest.raises(MissingColumn, match="`reward` is required"):
        first.replace(reward=None)
    with pytest.raises(InvalidData, match="5 values for 6 tokens"):
        first.replace(token_count=[2, 2, 1, 1])
    with pytest.raises(InvalidData, match="different groups"):
        first.replace(group=["g", "h", "g", "h"])
    with pytest.raises(InvalidData, match="negative"):
        first.replace(row_weight=[-1.0, 1, 1, 1])
