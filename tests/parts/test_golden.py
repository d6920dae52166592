"""Every hand-derived number is met by the part it names.

(1) tables: advantages, rewards, selections, weights; (2) token batches: losses and regularizers; (3) aggregation;
(4) optimizers; (5) every case says how its numbers come about.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from palaestra.algebra import Credit, aggregate
from palaestra.data import StepTable, TokenBatch
from palaestra.data.iteration import Iteration
from tests.golden_cases import golden_documents
from tests.registered import target

SLOTS = ("advantage", "reward", "selection", "weights", "loss", "regularizer", "optimizer")
KNOWN = (*SLOTS, "aggregation")  # numbers of other slots are held by the tests of their own rooms
CASES = [
    (document["name"], place, case, document.get("table", {}))
    for document in golden_documents()
    for place, case in enumerate(document.get("cases", []))
    if case["slot"] in KNOWN
]
UNITS = ("row", "invocation", "trajectory", "group", "agent", "pair")
IDS = [f"{name}-{place}-{case['part']}" for name, place, case, _ in CASES]


def batch_of(columns: dict[str, list[Any]]) -> TokenBatch:
    """A token batch from the columns of a case; `ratio` stands for logprob = log(ratio) and logprob_old = 0."""
    size = len(next(iter(columns.values())))
    numbers = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
    units = {name: numbers.pop(name).long() for name in UNITS if name in numbers}
    numbers.pop("loss", None)
    if "ratio" in numbers:
        numbers["logprob"] = numbers.pop("ratio").log()
    filled = {name: torch.zeros(size, dtype=torch.float64) for name in ("advantage", "logprob", "logprob_old")}
    filled["weight"] = torch.ones(size, dtype=torch.float64)
    filled["value_weight"] = numbers.get("weight", filled["weight"])
    places = {name: torch.zeros(size, dtype=torch.int64) for name in ("row", "trajectory")}
    return TokenBatch(**{**places, **units}, scope="minibatch", **{**filled, **numbers})


def method_of(case: dict[str, Any]) -> Tensor:
    """A formula inside a part on given numbers: a function of its module, or a method where the part holds state."""
    numbers = {name: torch.tensor(given) for name, given in case["numbers"].items()}
    part, options = target(case["slot"], case["part"]), case.get("options", {})
    if inspect.isclass(part):
        return cast(Tensor, getattr(part(**options), case["method"])(**numbers))
    return cast(Tensor, getattr(sys.modules[part.__module__], case["method"])(**numbers, **options))


def on_table(case: dict[str, Any], columns: dict[str, Any]) -> Tensor | Credit:
    table = StepTable(**{**columns, **case.get("columns", {})})
    data = [torch.tensor(case["advantage"])] if "advantage" in case else []
    part, options = target(case["slot"], case["part"]), case.get("options", {})
    iteration = Iteration({}, case.get("step", 0), seed=0, temperature=1.0, token_budget=64)
    given = {"iteration": iteration} if part.part.takes_iteration else {}
    if inspect.isclass(part):  # holds state: made once, then called
        part, options = part(**options), {}
    found = part(table, *data, **given, **options)
    return found[case["slot"]] if isinstance(found, dict) else found  # of several columns, that of the slot


def stepped(case: dict[str, Any]) -> Tensor:
    parameter = torch.tensor(case["parameters"], requires_grad=True)
    optimizer = target("optimizer", case["part"])([parameter], **case["options"])
    parameter.grad = torch.tensor(case["gradients"])
    optimizer.step()
    return parameter.detach()


def result(case: dict[str, Any], columns: dict[str, Any]) -> Tensor | Credit:
    match case["slot"]:
        case "loss" | "regularizer":  # rule 2
            part = target(case["slot"], case["part"])
            found: Tensor = part(batch_of(case["batch"]), **case.get("options", {}))[0]
            return found
        case "aggregation":  # rule 3
            batch, options = batch_of(case["batch"]), case.get("options", {})
            return aggregate(torch.tensor(case["batch"]["loss"]), batch, how=case["part"], **options)
        case "optimizer":  # rule 4
            return stepped(case)
        case _ if "method" in case:
            return method_of(case)
        case _:  # rule 1
            return on_table(case, columns)


@pytest.mark.parametrize(("file", "place", "case", "columns"), CASES, ids=IDS)
def test_hand_derived_numbers(file: str, place: int, case: dict[str, Any], columns: dict[str, Any]) -> None:
    found = result(case, columns)
    expected = case["expected"]
    if isinstance(found, Credit):
        pairs = [(found.advantage, expected["advantage"]), (found.target, expected["target"])]
    else:
        pairs = [(found, expected)]
    for numbers, wanted in pairs:
        wanted = torch.as_tensor(wanted, dtype=torch.float64)
        assert numbers.shape == wanted.shape
        same = torch.allclose(numbers.double(), wanted, atol=6e-5, rtol=0, equal_nan=True)
        assert same, (numbers.tolist(), case["derivation"])


def faults_of(case: dict[str, Any]) -> Iterator[str]:
    """What a case lacks that a reader needs."""
    if len(str(case["derivation"])) <= 3:
        yield "no derivation"
    if case["slot"] != "aggregation" and not target(case["slot"], case["part"]):
        yield "no such part"
    if not all(math.isfinite(x) for x in _flat(case["expected"])):
        yield "a number is not finite"


def test_cases_say_where_they_come_from() -> None:  # rule 5
    assert CASES
    assert not [f"{name}: {fault}" for name, (*_, case, _) in zip(IDS, CASES, strict=True) for fault in faults_of(case)]
    bad = {"slot": "aggregation", "part": "token-mean", "derivation": "?", "expected": [1.0, math.inf]}
    assert [*faults_of(bad)] == ["no derivation", "a number is not finite"]


def _flat(expected: Any) -> list[float]:
    """All numbers but targets, where `.nan` says that there is none."""
    named = expected.items() if isinstance(expected, dict) else [("", expected)]
    pieces = [numbers for name, numbers in named if name != "target"]
    return torch.cat([torch.as_tensor(piece, dtype=torch.float64).reshape(-1) for piece in pieces]).tolist()
