"""EMPG:

1. The mean over rows is subtracted, and a next step of low entropy is rewarded.
2. Without gain and bonus it only centers, and tokens get the values of their rows.
3. It carries no gradient; bad input is refused with a clear message.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.empg import empg
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


@quick
@given(tables())
def test_empg_factors(some: StepTable) -> None:  # rule 1
    ones = torch.ones(len(some))
    assert abs(float(empg(some, ones, bonus=0.0).double().mean())) < 1e-6, "the mean over rows is subtracted"
    flat = some.replace(row_entropy=torch.full((len(some),), 0.7))
    base = grpo(some)
    assert close(empg(flat, base, bonus=0.0), base.double() - base.double().mean())


@quick
@given(tables())
def test_empg_without_effect(some: StepTable) -> None:  # rule 2
    base = grpo(some)
    assert close(empg(some, base, gain=0.0, bonus=0.0), base.double() - base.double().mean())
    assert close(empg(some, base[some.token_row]), empg(some, base)[some.token_row])


def test_empg_rewards_a_clear_next_step() -> None:  # rule 1
    sure = empg(table(row_entropy=[0.5, 0.0, 0.5, 1.0]), torch.zeros(4), bonus=0.1)
    assert sure[0] > sure[2] > sure[1] and sure[1] == sure[3], "last rows get no bonus"


def test_empg_carries_no_gradient() -> None:  # rule 3
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    assert not empg(table(row_entropy=entropy), torch.ones(4)).requires_grad


def test_empg_bad_input() -> None:  # rule 3
    with pytest.raises(MissingColumn, match="row_entropy"):
        empg(table(row_entropy=None), torch.ones(4))
    with pytest.raises(InvalidData, match="not finite"):
        table(row_entropy=[0.1, float("nan"), 0.1, 0.1])
    with pytest.raises(InvalidData, match=r"an entropy is negative: -0\.5") as caught:
        empg(table(row_entropy=[0.1, -0.5, 0.1, 0.1]), torch.ones(4))
    assert "row 1" in str(caught.value) and "not a log-probability" in str(caught.value)
    with pytest.raises(InvalidData, match="every row has weight 0"):
        empg(table(row_weight=[0.0] * 4), torch.ones(4))
    for key in ("gain", "clarity", "bonus"):
        with pytest.raises(RecipeError, match=f"cannot take `{key}: "):
            empg(table(), torch.ones(4), **{key: -0.1})
