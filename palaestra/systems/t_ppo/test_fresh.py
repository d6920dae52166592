"""The weights `fresh`: (1) 1 on new steps, 0 on old ones, per row, whatever their order; (2) a table without the
column, or with other numbers in it, is refused; (3) so is a recipe whose runner does not write it.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.recipe import load
from palaestra.systems.t_ppo.fresh import fresh
from palaestra.training.stages import combine
from tests.parts.tables import quick, shuffled, tables


@quick
@given(table=tables())
def test_new_steps_only(table: StepTable) -> None:  # rule 1
    new = (torch.arange(len(table)) % 3 > 0).float()
    table = table.replace(fresh=new)
    order = shuffled(table, 3)
    assert torch.equal(fresh(table), new)
    assert torch.equal(fresh(table.take(order)), new[order])
    assert torch.equal(combine([fresh(table)], table), new[table.token_row])


def test_bad_input() -> None:  # rule 2
    table = StepTable(group=["g"] * 2, trajectory=[0, 1], agent=["x"] * 2, turn=[0, 0], reward=[0.0] * 2)
    with pytest.raises(MissingColumn, match="`fresh`"):
        fresh(table)
    with pytest.raises(InvalidData, match=r"row 1(.|\n)*`fresh` is 0.5"):
        fresh(table.replace(fresh=[1.0, 0.5]))


def test_recipes() -> None:  # rule 3
    load(["t_ppo/counting.yaml", "t_ppo/method.yaml"])
    with pytest.raises(RecipeError, match="the runner `episodes` gives none") as caught:
        load(["t_ppo/counting.yaml", "t_ppo/method.yaml"], ["rollout.runner=episodes"])
    assert "set rollout.runner=windows" in str(caught.value.remedy)
    with pytest.raises(RecipeError, match="window"):
        load(["t_ppo/counting.yaml", "t_ppo/method.yaml"], ["rollout.window=0"])
