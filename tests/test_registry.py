"""Parts called directly: (1) data may be given by position or by name, and gives the same; (2) options are checked
beside it, as in a recipe; (3) so it is for classes. What parts say of themselves: (4) functions, classes, objects and
what is bound to options are asked alike, and a class before its parent; (5) what was registered is found.
"""

from __future__ import annotations

import functools

import pytest
import torch

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.parts.estimators import grpo
from palaestra.registry import PositiveInt, declared, names, part, register, registration
from palaestra.systems.gigpo import gigpo
from palaestra.training.bound import bind
from palaestra.training.settings import Use

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


def test_4_what_parts_say_of_themselves() -> None:
    @register("strategy", "of_this_test")
    class Mine:
        called_per = "group"
        provides = frozenset({"node"})

    class Other(Mine):  # type: ignore[misc, valid-type]
        called_per = "iteration"

    assert [declared(one, "called_per") for one in (Mine, Mine(), Other, Other())] == ["group"] * 2 + ["iteration"] * 2
    assert declared(Other(), "provides") == {"node"} and declared(grpo, "provides") is None
    assert declared(bind("program", Use(name="play")), "roles") == () and declared(lambda: None, "roles") is None
    assert declared(part("rollout", "episodes").target, "opens") and not declared(
        part("rollout", "vector").target, "opens"
    )
    with pytest.raises(KeyError):
        declared(grpo, "provide")


def test_5_registrations() -> None:
    assert registration(grpo) is registration(functools.partial(grpo, scale="none")) is part("advantage", "grpo")
    assert registration(len) is None
