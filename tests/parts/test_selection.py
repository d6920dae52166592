"""Selection: (1) a group stays iff its trajectories differ; (2) afterwards no group has zero signal; (3) padding and
unselected rows do not count; (4) a metric that is not there is refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.algebra import segment_range, total_return
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.parts.estimators import grpo
from palaestra.parts.selections import constant_groups, everything
from tests.messages import told
from tests.parts.tables import quick, tables


@quick
@given(tables())
def test_groups_that_differ_stay(table: StepTable) -> None:  # rule 1
    kept = constant_groups(table, column="return")
    for group in set(table["group"].tolist()):
        own = table["group"] == group
        differs = len(set(total_return(table)[own].tolist())) > 1
        assert set(kept[own].tolist()) == {differs}
    assert bool(everything(table).all())


@quick
@given(tables())
def test_no_silent_group_remains(table: StepTable) -> None:  # rule 2
    kept = table.replace(row_weight=constant_groups(table, column="return").float())
    if bool((kept.row_weight > 0).any()):
        spread = segment_range(grpo(kept), by=kept.key("group"))
        assert bool((spread[kept["group"]][kept.row_weight > 0] > 0).all())
    else:
        assert bool((grpo(kept) == 0).all()), "a batch without any row is no error"


def test_padding_does_not_count() -> None:  # rule 3
    table = StepTable(group=["g"] * 3, trajectory=[0, 1, 2], agent=["x"] * 3, turn=[0] * 3, reward=[0.0] * 3,
                      outcome=[1.0, 1.0, 0.0], row_weight=[1.0, 1.0, 0.0])  # fmt: skip
    assert constant_groups(table).tolist() == [False] * 3
    assert constant_groups(table.replace(row_weight=torch.ones(3))).tolist() == [True] * 3


def test_unknown_column() -> None:  # rule 4
    table = StepTable(group=["g"] * 2, trajectory=[0, 1], agent=["x"] * 2, turn=[0] * 2, reward=[0.0] * 2)
    with pytest.raises(MissingColumn, match="acuracy"):
        constant_groups(table, column="acuracy")
    with told(InvalidData, "1 of 2"):
        constant_groups(table.replace(outcome=torch.tensor([1.0, torch.nan])))
