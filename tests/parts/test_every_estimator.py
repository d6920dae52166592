"""What every estimator and filter must hold, found by their registration: (1) the contract of `check_estimator`
on tables of many tokens a row, (2) and of one token a row, as network policies give; (3) filters too; (4) the
checker itself refuses an estimator that breaks a rule; (5) it says which rules it cannot check for a function that is
not registered, and it checks options.
"""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palaestra.algebra import reward_to_go, standardize, total_return
from palaestra.data import Iteration, StepTable
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_estimator
from tests.messages import told
from tests.parts.tables import NEEDED, shuffled, tables, with_columns_of
from tests.registered import Slot, targets

few = settings(max_examples=5, deadline=None, derandomize=True)  # of each variant
advantages = Slot("advantage")
PARTS = [o for o in targets("advantage") if not inspect.isclass(o)]  # those with state have tests of their own
ESTIMATORS = [o for o in PARTS if len(o.part.data) == 1]
FILTERS = [o for o in PARTS if len(o.part.data) == 2]


class Variant:
    """A part with some options."""

    def __init__(self, target: Any, **options: Any) -> None:
        self.target, self.options = target, options

    def __repr__(self) -> str:
        return "-".join([self.target.part.name, *(f"{k}={v}" for k, v in self.options.items())])


def variants(target: Any) -> list[Variant]:
    """The part as it is, and once for every other value of every option that is a choice or a switch."""
    always = NEEDED.get(target.part.name, {})
    found = [Variant(target, **always)]
    for name, option in target.part.options.model_fields.items():
        choices = typing.get_args(option.annotation) if typing.get_origin(option.annotation) is typing.Literal else ()
        if name == "unit":
            choices = ("row", "token")
        found += [Variant(target, **always, **{name: choice}) for choice in {*choices} - {"error", option.default}]
    return sorted(found, key=repr)


EVERY = [variant for target in ESTIMATORS for variant in variants(target)]


def test_estimators_are_found() -> None:
    assert len(ESTIMATORS) >= 10 and len(FILTERS) >= 3 and len(EVERY) > 40


@pytest.mark.parametrize("variant", EVERY, ids=repr)
@few
@given(table=tables(), seed=st.integers(0, 10**6))
def test_many_tokens(variant: Variant, table: StepTable, seed: int) -> None:  # rule 1
    table = with_columns_of(variant.target.part, table)
    check_estimator(variant.target, table, order=shuffled(table, seed), **variant.options)


@pytest.mark.parametrize("variant", EVERY, ids=repr)
@few
@given(table=tables(one_token=True), seed=st.integers(0, 10**6))
def test_one_token_a_row(variant: Variant, table: StepTable, seed: int) -> None:  # rule 2
    table = with_columns_of(variant.target.part, table)
    check_estimator(variant.target, table, order=shuffled(table, seed), **variant.options)


@pytest.mark.parametrize("filtering", FILTERS, ids=lambda f: f.part.name)
@pytest.mark.parametrize("first", [advantages.gigpo, advantages.reinforce_plus_plus], ids=["rows", "tokens"])
@few
@given(table=tables(), seed=st.integers(0, 10**6))
def test_filters(first: Any, filtering: Any, table: StepTable, seed: int) -> None:  # rule 3
    if filtering is advantages.salt:  # reads one number a trajectory, as rows or as tokens
        outcome = advantages.grpo
        first = outcome if first is advantages.gigpo else lambda t: outcome(t)[t.token_row]
    check_estimator(filtering, table, after=first, order=shuffled(table, seed))


def _grows(calls: list[int]) -> Callable[[StepTable], Tensor]:
    def estimator(table: StepTable) -> Tensor:
        calls.append(1)
        return torch.full((len(table),), float(len(calls)))

    return estimator


def _spoils(table: StepTable) -> Tensor:
    table["reward"].add_(1)
    return torch.zeros(len(table))


def _by_row(table: StepTable) -> Tensor:
    return torch.arange(len(table)).float() * (table.row_weight > 0)


def _pads(table: StepTable) -> Tensor:
    return (total_return(table) - table["reward"].mean()) * (table.row_weight > 0)


def _never_zero(table: StepTable) -> Tensor:
    return (reward_to_go(table, gamma=1.0) + 1) * (table.row_weight > 0)


_never_zero.part = advantages.grpo.part  # type: ignore[attr-defined]  # claims to compare peers


def _alone_is_fine(table: StepTable) -> Tensor:
    return standardize(total_return(table), by=table.key("group"), unit=table.unit("trajectory"))


def _alone_is_a_crash(table: StepTable) -> Tensor:
    if table.key("group").size == len(table):
        raise ZeroDivisionError
    return _alone_is_fine(table)


for _claims in (_alone_is_fine, _alone_is_a_crash):
    _claims.part = advantages.grpo.part  # type: ignore[attr-defined]

BROKEN: dict[str, tuple[str, Callable[[StepTable], Any]]] = {
    "a list": ("1", lambda table: [0.0] * len(table)),
    "float64": ("1", lambda table: torch.zeros(len(table), dtype=torch.float64)),
    "shape": ("1", lambda table: torch.zeros(len(table) + 40)),
    "not a number": ("2", lambda table: torch.full((len(table),), torch.nan)),
    "grows": ("3", _grows([])),
    "spoils": ("3", _spoils),
    "order": ("4", _by_row),
    "padding": ("5", _pads),
    "padding is not 0": ("5", total_return),
    "no signal": ("6", _never_zero),
    "lone members": ("7", _alone_is_fine),
    "lone members crash": ("7", _alone_is_a_crash),
}


@pytest.mark.parametrize("name", BROKEN)
def test_checker_refuses(name: str) -> None:  # rule 4
    table = StepTable(
        group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[0, 1, 0, 1], reward=[1, 0, 2, 0]
    )
    rule, estimator = BROKEN[name]
    with pytest.raises(ContractError, match=f"rule {rule}"):
        check_estimator(estimator, table)


def test_what_the_checker_says_of_lone_members() -> None:  # rule 4
    table = StepTable(
        group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[0, 1, 0, 1], reward=[1, 0, 2, 0]
    )
    for estimator, what in (
        (_alone_is_fine, "it gives advantages"),
        (_alone_is_a_crash, "it raises ZeroDivisionError"),
    ):
        with told(ContractError, "has two members") as caught:
            check_estimator(estimator, table)
        assert what in caught.value.what and "need_peers=True" in caught.value.remedy
    check_estimator(advantages.grpo, table)


def test_what_the_checker_cannot_check() -> None:  # rule 5
    table = StepTable(
        group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[0, 1, 0, 1], reward=[1, 0, 2, 0]
    )
    with pytest.warns(UserWarning, match="rules 6 and 7 were not checked, because `<lambda>` is not registered"):
        check_estimator(lambda t: advantages.grpo(t), table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_estimator(advantages.grpo, table, scale="none")
        check_estimator(functools.partial(advantages.grpo, scale="none"), table)
    with pytest.raises(RecipeError, match="scal"):
        check_estimator(advantages.grpo, table, scal="none")


@pytest.mark.parametrize("options", [{}, {"rate": 0.5}])
def test_parts_with_state_and_options(options: dict[str, float]) -> None:  # rule 5
    """A class is made anew for each call, so one that remembers passes rule 3 only as the run would use it."""

    class Remembers:
        def __init__(self, *, rate: float = 1.0) -> None:
            self.calls, self.rate = 0, rate

        def __call__(self, table: StepTable, iteration: Iteration) -> Tensor:
            self.calls += 1
            return table.row_weight.float() * (self.calls * self.rate + iteration.seed)

    table = StepTable(
        group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[0, 1, 0, 1], reward=[1, 0, 2, 0]
    )
    with pytest.warns(UserWarning, match="`Remembers` is not registered"):
        check_estimator(Remembers, table, iteration=Iteration(seed=3), **options)
