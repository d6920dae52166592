"""What is left out of training, of several systems side by side: (1) the order of rows and padding change nothing; (2)
what is refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import MissingColumn, RecipeError
from palaestra.systems.dart.uncertain_steps import uncertain_steps
from palaestra.systems.spear.filters import repetition_filter, unreadable_filter
from palaestra.systems.spear.widest_groups import widest_groups
from tests.parts.tables import quick, shuffled, tables
from tests.replay.episodes import episode, seen


@quick
@given(tables())
def test_order_and_padding_change_nothing(table: StepTable) -> None:  # rule 1
    order = shuffled(table, 1)
    for part in (lambda t: uncertain_steps(t, quantile=0.4), lambda t: widest_groups(t, share=0.5)):
        first = part(table)
        assert torch.equal(part(table.take(order)), first[order])
        size = len(table)
        twice = table.take(torch.cat([torch.arange(size), torch.arange(size)]))
        weight = (torch.arange(2 * size) < size).float()
        wild = twice.replace(
            row_weight=weight,
            row_entropy=torch.where(weight > 0, twice["row_entropy"], 99.0),
            reward=torch.where(weight > 0, twice["reward"], 99.0),
        )
        assert torch.equal(part(wild)[:size], first)


def test_what_is_refused() -> None:  # rule 2
    table = StepTable.from_trajectories([episode(0.0)])
    with pytest.raises(MissingColumn, match="row_entropy"):
        uncertain_steps(table)
    for quantile in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="quantile"):
            uncertain_steps(table, quantile=quantile)
    with pytest.raises(RecipeError, match="share"):
        widest_groups(table, share=0.0)
    with pytest.raises(RecipeError, match="times"):
        repetition_filter(table, seen([episode(0.0)]), times=1)
    with pytest.raises(RecipeError, match="most"):
        unreadable_filter(table, seen([episode(0.0)]), most=1.0)
