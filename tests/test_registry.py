"""Parts called directly: (1) data may be given by position or by name, and gives the same; (2) options are checked
beside it, as in a recipe; (3) so it is for classes.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.parts.estimators import grpo
from palaestra.registry import PositiveInt, names, part, register
from palaestra.systems.gigpo import gigpo

TABLE = StepTable(
    group=["g", "g"], trajectory=[0, 1], agent=["x", "x"], turn=[0, 0], reward=[1.0, 0.0], state_key=["a", "b"]
)


def test_1_data_by_name() -> None:
    assert torch.equal(grpo(table=TABLE), grpo(TABLE))
    assert torch.equal(gigpo(table=TABLE, gamma=0.5), gigpo(TABLE, gamma=0.5))


def test_2_options_are_checked_beside_data() -> None:
    for given in ((), (TABLE,)):
        by_name = {} if given else {"table": TABLE}
        with pytest.raises(RecipeError, match="has no option `gama`"):
            gigpo(*given, gama=0.9, **by_name)
        with pytest.raises(RecipeError, match="cannot take `gamma: 2"):
            gigpo(*given, gamma=2, **by_name)
    with pytest.raises(TypeError, match="table"):
        grpo(TABLE, table=TABLE)


def test_3_classes() -> None:
    @register("policy", "of_this_test")
    class Policy:
        def __init__(self, name: str, setting: object, *, hidden: PositiveInt = 4) -> None:
            self.all = name, setting, hidden

    assert Policy(name="a", setting=1, hidden="8").all == Policy("a", 1, hidden=8).all == ("a", 1, 8)
    assert Policy("a", setting=1).all == ("a", 1, 4)
    with pytest.raises(RecipeError, match="has no option `hiden`"):
        Policy(name="a", setting=1, hiden=8)


@pytest.mark.parametrize("slot", ["advantage", "weights", "loss", "regularizer", "reward", "selection"])
def test_2_no_option_is_called_like_data(slot: str) -> None:
    for name in names(slot):
        found = part(slot, name)
        assert not set(found.data) & set(found.options.model_fields), name
