"""Signatures are checked at run time in tests: (1) a wrong shape raises, in arguments, results and fields; (2) so does
a wrong type without a shape; (3) what fits passes, and the name of a dimension is one number in one call only; (4) the
tables and formulas of the package are checked so.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from palaestra.algebra import segment_rank
from palaestra.data.keys import Key
from tests.shapes import check_signatures

CODE = """
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from jaxtyping import Float
from torch import Tensor


def both(one: Float[Tensor, " rows"], other: Float[Tensor, " rows"], *, times: int = 1) -> Float[Tensor, " rows"]:
    return ((one + other) * times).repeat(times)


def inner(scale: int) -> Callable[[Tensor], Tensor]:
    def scaled(values: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        return values * scale
    return scaled


class Place:
    @property
    def values(self) -> Float[Tensor, "2"]:
        import torch
        return torch.zeros(self.size)

    def __init__(self, size: int) -> None:
        self.size = size


@dataclass(frozen=True, slots=True)
class Pair:
    one: Float[Tensor, " rows"]
    other: Float[Tensor, " rows"]
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "of_shapes.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    check_signatures(["of_shapes"])
    yield importlib.import_module("of_shapes")
    del sys.modules["of_shapes"]


def test_1_shapes(code: Any) -> None:
    two, three = torch.zeros(2), torch.zeros(3)
    for wrong in (
        lambda: code.both(two, three),
        lambda: code.both(two, torch.zeros(2, dtype=torch.int64)),
        lambda: code.both(two, two, times=2),
        lambda: code.inner(2)(torch.zeros(2, 2)),
        lambda: code.Place(3).values,
        lambda: code.Pair(two, three),
    ):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()


def test_2_types(code: Any) -> None:
    for wrong in (lambda: code.both(torch.zeros(2), torch.zeros(2), times="1"), lambda: code.Place("2")):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()


def test_3_what_fits(code: Any) -> None:
    for size in (2, 3):
        values = torch.ones(size)
        assert code.both(values, values).tolist() == [2.0] * size
        assert code.inner(3)(values).tolist() == [3.0] * size
        assert code.Pair(values, other=values).one is values
    assert code.Place(2).values.tolist() == [0.0, 0.0]
    assert code.both.__name__ == "both" and code.both.__doc__ is None


def test_4_the_package() -> None:
    key = Key(torch.zeros(3, dtype=torch.int64), 1)
    for wrong in (lambda: segment_rank(torch.zeros(3, 2), by=key), lambda: Key(torch.zeros(3), 1)):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()
