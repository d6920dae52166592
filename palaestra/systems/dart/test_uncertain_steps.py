"""Uncertain steps:

1. Steps below the group's quantile of entropy are left out.
2. Quantile 0 keeps every step.
3. With neutral options every factor of DART is 1 and every episode stays, as in GRPO.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given

from palaestra.data import StepTable
from palaestra.parts.importance import truncated_importance
from palaestra.replay.selection import ReplaySuccess
from palaestra.systems.dart.uncertain_steps import uncertain_steps
from palaestra.training.stages import combine
from tests.parts.tables import quick, tables
from tests.replay.episodes import at


@quick
@given(tables())
def test_quantiles_are_those_of_numpy(table: StepTable) -> None:  # rule 1
    for quantile in (0.2, 0.5, 0.9):
        weight = uncertain_steps(table, quantile=quantile)
        for group in set(table["group"].tolist()):
            own = table["group"] == group
            bound = np.quantile(table["row_entropy"][own].double().numpy(), quantile)
            assert weight[own].tolist() == (table["row_entropy"][own].double().numpy() >= bound - 1e-12).tolist()
    assert bool((uncertain_steps(table, quantile=0.0) == 1).all())  # rule 2


@quick
@given(tables())
def test_neutral_curation_is_grpo(table: StepTable) -> None:  # rule 3
    same = table.replace(logprob_old=table["logprob_behavior"])
    factors = [uncertain_steps(same, quantile=0.0), truncated_importance(same, cap=1e9)]
    assert bool((combine(factors, same) == 1).all())
    assert bool(ReplaySuccess()(same, at(0)).all())
