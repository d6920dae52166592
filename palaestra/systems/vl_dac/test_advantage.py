"""VL-DAC's advantage: (1) no option discounts inside a step."""

from __future__ import annotations

import pytest

from palaestra.errors import RecipeError
from palaestra.systems.vl_dac.advantage import vl_dac
from tests.parts.small_tables import two_steps


def test_no_discount_inside_a_step() -> None:  # rule 1
    with pytest.raises(RecipeError, match="has no option `gamma_in`"):
        vl_dac(two_steps(), gamma_in=0.9)
