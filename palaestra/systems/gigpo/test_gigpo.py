"""GiGPO over similar texts:

1. Steps from states with similar texts are compared.
2. Texts that are not similar are different states.
3. Bad input is refused with a clear message.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import dr_grpo
from palaestra.systems.gigpo import gigpo
from tests.parts.small_tables import table
from tests.parts.tables import close, quick, tables


def test_similar_states_are_compared() -> None:  # rule 1
    near = table(state_key=["1", "2", "3", "4"], state_text=["a large hall", "a door", "a large halls", "a yard"])
    assert torch.equal(gigpo(near), dr_grpo(near))
    step = gigpo(near, similarity=0.9) - dr_grpo(near)
    assert close(step, [0.475, 0, -0.475, 0])


@quick
@given(tables(), st.sampled_from(["none", "std"]))
def test_unlike_texts_are_states(some: StepTable, scale: Any) -> None:  # rule 2
    texts = {"hall": "xxxx", "door": "yyyy", "yard": "zzzz"}
    names = some.labels("state_key")
    told = some.replace(state_text=[texts[names[code]] for code in some["state_key"].tolist()])
    assert torch.equal(gigpo(told, similarity=0.5, scale=scale), gigpo(some, scale=scale))


def test_similarity_bad_input() -> None:  # rule 3
    for similarity in (0.0, 1.0, 1.5):
        with pytest.raises(RecipeError, match="cannot take `similarity: "):
            gigpo(table(), similarity=similarity)
    with pytest.raises(InvalidData, match="similarity compares texts, but the column contains 7"):
        gigpo(table(state_text=[7, 7, 8, 8]), similarity=0.9)
    with pytest.raises(MissingColumn, match="state_text"):
        gigpo(table(state_text=None), similarity=0.9)
