"""Parts called directly: (1) data may be given by position or by name, with the same result; (2) options are checked as
in a recipe; (3) both hold for classes too. What parts declare: (4) functions, classes, objects and partials are read in
the same way, and a class goes before its parent; (5) a registered part is found. (6) A group of options is one
parameter, whose fields are options of the part: a recipe gives them by name, a call by name or as the group.
"""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

from palaestra.algebra import Peers
from palaestra.data import StepTable
from palaestra.errors import ContractError, RecipeError
from palaestra.parts.estimators import dr_mas, grpo, grpo_process
from palaestra.registry import OptionGroup, Part, PositiveInt, declared, names, part, register, registration
from palaestra.registry.bound import BoundPart, bind
from palaestra.systems.gigpo import gigpo
from tests.messages import told

GROUP = ["ddof", "singleton", "zero_variance"]
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
    assert declared(bind("program", BoundPart(name="play")), "roles") == () and declared(lambda: None, "roles") is None
    assert declared(part("rollout", "episodes").target, "opens") and not declared(
        part("rollout", "vector").target, "opens"
    )
    with pytest.raises(KeyError):
        declared(grpo, "provide")


def test_5_registrations() -> None:
    assert registration(grpo) is registration(functools.partial(grpo, scale="none")) is part("advantage", "grpo")
    assert registration(len) is None


# ---- groups of options ------------------------------------------------------------------------------------
def test_6_the_schema_has_the_fields() -> None:
    fields = part("advantage", "dr_mas").options.model_fields
    assert [*fields] == ["scale", "by", "unit", "returns", "penalty", *GROUP], "`first`, then the signature"
    assert fields["by"].default == ("group", "agent") and part("advantage", "grpo").options().by == ("group",)
    assert "unit" not in part("advantage", "grpo_process").options.model_fields
    checked = part("advantage", "dr_mas").check({"by": ["group"], "scale": "none"}, where="here")
    assert checked["by"] == ("group",) and checked["unit"] == "row"


def test_6_calls_and_recipes_agree() -> None:
    twice = StepTable(group=["g"] * 3, trajectory=[0, 0, 1], agent=["x"] * 3, turn=[0, 1, 0], reward=[1.0, 1.0, 0.0])
    expected = dr_mas(twice, unit="trajectory")
    assert not torch.equal(expected, dr_mas(twice))
    assert torch.equal(dr_mas(twice, peers=Peers(by=("group", "agent"))), expected)
    assert torch.equal(part("advantage", "dr_mas").target(twice, unit="trajectory", scale="std"), expected)
    assert torch.equal(dr_mas(twice, peers=Peers()), dr_mas(twice, by=("group",), unit="trajectory"))


def test_6_signatures_show_the_fields() -> None:
    shown = inspect.signature(functools.partial(dr_mas, by=("group",))).parameters
    assert [*shown] == ["table", "scale", "returns", "penalty", "peers", "by", "unit", *GROUP]
    assert shown["by"].default == ("group",) and shown["unit"].default == "row"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"peers": Peers(), "by": ("group",)}, "both `peers` and `by`"),
        ({"peers": {"by": ("group",)}}, "Peers"),
        ({"peers": Peers(ddof=7)}, "`ddof: 7"),
        ({"peers": Peers(), "sale": "none"}, "`sale`"),
    ],
)
def test_6_wrong_calls(options: dict[str, object], said: str) -> None:
    with told(RecipeError, said):
        grpo(TABLE, **options)


def test_6_what_a_part_does_not_offer() -> None:
    assert torch.equal(grpo_process(TABLE, peers=Peers(ddof=0)), grpo_process(TABLE, ddof=0))
    for given in ({"unit": "token"}, {"peers": Peers(unit="token")}):
        with told(RecipeError, "`unit`"):
            grpo_process(TABLE, **given)
    with told(RecipeError, "`peers`"):
        part("advantage", "grpo").check({"peers": {"by": ["group"]}}, where="here")


def test_6_classes() -> None:
    class Plain:
        def __init__(self, name: str, *, wide: bool = False, peers: Peers = Peers(unit="row")) -> None:
            self.all = name, wide, peers

    with told(ContractError, "registered"):
        _ = Part(slot="policy", name="plain", target=Plain).options
    Grouped = register("policy", "grouped_of_this_test")(Plain)
    assert Grouped("a").all == ("a", False, Peers(unit="row"))
    assert Grouped("a", by=["agent"]).all == ("a", False, Peers(by=("agent",), unit="row"))
    assert Grouped("a", wide=True, peers=Peers(ddof=0)).all == ("a", True, Peers(ddof=0))


def test_6_functions_without_registration() -> None:
    found = part("advantage", f"{__file__}:plain_estimator")
    assert [*found.options.model_fields] == ["by", "unit", "ddof", "singleton", "zero_variance"]
    assert found.target(TABLE, **found.check({"unit": "row"}, where="here")) == Peers(unit="row", ddof=0)


def plain_estimator(table: StepTable, *, peers: Peers = Peers(ddof=0)) -> Peers:
    """A part without registration that returns its options."""
    return peers


def no_default(table: StepTable, *, peers: Peers) -> None:
    """A group needs a default."""


def twice_the_same(table: StepTable, *, ddof: int = 1, peers: Peers = Peers()) -> None:
    """One of its own options has the name of an option of the group."""


@pytest.mark.parametrize(("function", "said"), [(no_default, "`peers`"), (twice_the_same, "`ddof`")])
def test_6_wrong_signatures(function: object, said: str) -> None:
    with told(ContractError, said):
        _ = Part(slot="advantage", name="wrong", target=function).options
    assert issubclass(Peers, OptionGroup)
