"""The fading bonus for tools:

1. It follows the schedule and the cap.
2. It is on the turns that called a tool, in time order, whatever the order of rows.
3. Without schedule or rate nothing changes, bit for bit.
4. The outcome does not change.
5. Padding, replayed rows and unreadable acts get no bonus or do not count.
6. A missing column and bad horizons are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import total_return
from palaestra.data import Batch, StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.spear.intrinsic_tool import IntrinsicTool
from palaestra.systems.spear.schedules import fall, rise
from tests.parts.tables import quick, shuffled, tables
from tests.replay.episodes import at

CALLS = [1.0, 0, 1, 1, 0, 0]


def table(**columns: Any) -> StepTable:
    base: dict[str, Any] = {
        "group": ["g"] * 6,
        "trajectory": ["a"] * 4 + ["b"] * 2,
        "agent": ["x"] * 6,
        "turn": [0, 1, 2, 3, 0, 1],
        "reward": [0.0, 0, 0, 1, 0, 0],
        "outcome": [1.0] * 4 + [0.0] * 2,
        "tool_call": CALLS,
    }
    return StepTable(**{**base, **columns})


@pytest.mark.parametrize(
    ("step", "up", "down"), [(0, 0, 1), (50, 0.1464, 0.8536), (100, 0.5, 0.5), (200, 1, 0), (250, 1, 0)]
)
def test_schedules(step: int, up: float, down: float) -> None:  # rule 1
    assert rise(step, 200) == pytest.approx(up, abs=5e-5) and fall(step, 200) == pytest.approx(down, abs=5e-5)
    found = IntrinsicTool(rate=1.0, cap=9.0, horizon=200)(table(), at(step))
    assert found["intrinsic"].sum().item() == pytest.approx(3 * down, abs=2e-4)
    assert IntrinsicTool(schedule="constant").factor(step) == 1.0


def test_cap_and_place() -> None:  # rules 1 and 2
    found = IntrinsicTool(rate=0.4, cap=1.0)(table(), at(0))
    assert found["intrinsic"].tolist() == pytest.approx([0.4, 0, 0.4, 0.2, 0, 0])
    assert found["reward"].tolist() == pytest.approx([0.4, 0, 0.4, 1.2, 0, 0])
    mixed = table().take(torch.tensor([5, 3, 1, 0, 2, 4]))
    assert IntrinsicTool(rate=0.4)(mixed, at(0))["intrinsic"].tolist() == pytest.approx([0, 0.2, 0, 0.4, 0.4, 0])


@quick
@given(tables())
def test_totals(given: StepTable) -> None:  # rules 1 and 2
    calls = (given["turn"] % 2).float()
    marked = given.replace(tool_call=calls)
    found = IntrinsicTool(rate=0.5, cap=0.75)(marked, at(0))
    paid = total_return(marked.replace(reward=found["intrinsic"]))
    turns = total_return(marked.replace(reward=calls))
    assert torch.allclose(paid, (0.5 * turns).clamp_max(0.75))
    order = shuffled(marked, 3)
    assert torch.allclose(
        IntrinsicTool(rate=0.5, cap=0.75)(marked.take(order), at(0))["reward"], found["reward"][order]
    )


@pytest.mark.parametrize("options", [{"schedule": "none"}, {"rate": 0.0}])
def test_neutral(options: dict[str, Any]) -> None:  # rule 3
    found = IntrinsicTool(**options)(table(), at(3))
    assert torch.equal(found["reward"], table()["reward"]) and not bool(found["intrinsic"].any())
    late = IntrinsicTool(horizon=10)(table(), at(10))
    assert torch.equal(late["reward"], table()["reward"])


def test_outcome_stays() -> None:  # rule 4
    assert set(IntrinsicTool()(table(), at(0))) == {"reward", "intrinsic"}


def test_padding_and_replay() -> None:  # rule 5
    part = IntrinsicTool(rate=0.4, cap=1.0)
    padded = table(row_weight=[1.0, 1, 0, 1, 1, 1])
    found = part(padded, at(0))
    assert found["intrinsic"].tolist() == pytest.approx([0.4, 0, 0, 0.4, 0, 0])
    told = table(replayed=[1.0] * 4 + [0.0] * 2)
    metrics = part.update(Batch.of((), told.replace(**part(told, at(0)))), at(0))
    assert metrics == {"intrinsic/factor": 1.0, "intrinsic/mean": 0.0, "intrinsic/tool_turns": 0.0}


def test_unreadable_acts_call_nothing() -> None:  # rule 5
    found = IntrinsicTool(rate=0.4)(table(invalid=[1.0, 0, 0, 0, 0, 0]), at(0))
    assert found["intrinsic"].tolist() == pytest.approx([0, 0, 0.4, 0.4, 0, 0])


def test_what_is_refused() -> None:  # rule 6
    with pytest.raises(MissingColumn, match="no column `tool_call`, which marks the turns that called a tool"):
        IntrinsicTool()(table(tool_call=None), at(0))
    for horizon in (0, -1):
        with pytest.raises(InvalidData, match="horizon"):
            rise(0, horizon)
        with pytest.raises(RecipeError, match="horizon"):
            IntrinsicTool(horizon=horizon)
