"""The counterfactual credit:

1. Its mean over each set of peers is 0.
2. In a game of two acts its gradient is the true one, by enumeration; "others" is this divided by the share of other
   acts.
3. Where all peers acted alike it is 0.
4. With share 0 rewards do not change.
5. Replay: the difference that the role made.
6. Refusals.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.systems.counterfactual import counterfactual
from tests.parts.small_tables import team
from tests.parts.tables import close, quick, tables


@quick
@given(tables())
def test_its_mean_over_peers_is_nothing(table: StepTable) -> None:  # rule 1
    by = ("group", "agent", "state_key")
    peers = table.key(*by)
    credit = counterfactual(table, by=by).double()
    assert close(torch.zeros(peers.size, dtype=torch.float64).index_add_(0, peers.codes, credit), [0.0] * peers.size)


def bandit(acts: tuple[tuple[int, int], ...], pay: Any) -> StepTable:
    """One episode for each pair of acts: two roles act at once and share what the pair is paid."""
    size = len(acts)
    return StepTable(
        group=["g"] * 2 * size,
        trajectory=[k for k in range(size) for _ in "ab"],
        agent=["a", "b"] * size,
        turn=[0, 1] * size,
        reward=[value for pair in acts for value in (pay[pair], 0.0)],
        state_key=["s"] * 2 * size,
        action_key=[act for pair in acts for act in pair],
    )


@pytest.mark.parametrize("against", ["all", "others"])
def test_its_gradient_is_that_of_the_return(against: Any) -> None:  # rule 2
    """All 4³ groups of three episodes, P_a(1) = 0.3, P_b(1) = 0.6.

    The mean of Σ C · ∂log P over groups is (n − 1)/n times the gradient of E[R]; with two acts "others" has the same
    direction.
    """
    p, pay = {"a": 0.3, "b": 0.6}, {(0, 0): 0.0, (0, 1): 0.4, (1, 0): -0.5, (1, 1): 1.0}
    score = {name: {1: 1 - q, 0: -q} for name, q in p.items()}  # of the logit of act 1
    gradient = dict.fromkeys(p, 0.0)
    pairs = list(pay)
    for acts in itertools.product(pairs, repeat=3):
        chance = np.prod([(p["a"] if a else 1 - p["a"]) * (p["b"] if b else 1 - p["b"]) for a, b in acts])
        found = counterfactual(bandit(acts, pay), against=against).tolist()
        for row, (name, act) in enumerate((name, act) for pair in acts for name, act in zip("ab", pair, strict=True)):
            gradient[name] += float(chance) * found[row] * score[name][act] / 3
    gain_a = 0.6 * (pay[1, 1] - pay[0, 1]) + 0.4 * (pay[1, 0] - pay[0, 0])
    gain_b = 0.3 * (pay[1, 1] - pay[1, 0]) + 0.7 * (pay[0, 1] - pay[0, 0])
    true = {"a": 0.3 * 0.7 * gain_a, "b": 0.6 * 0.4 * gain_b}
    if against == "all":
        assert gradient == pytest.approx({name: value * 2 / 3 for name, value in true.items()}, abs=1e-6)
    for name, value in true.items():
        assert gradient[name] * value > 0


@quick
@given(tables())
def test_against_others(table: StepTable) -> None:  # rule 2
    peers, alike = (table.key("group", "agent", "state_key", *more) for more in ((), ("action_key",)))
    count = [torch.bincount(key.codes)[key.codes].double() for key in (peers, alike)]
    rest = 1 - count[1] / count[0]
    assert close(rest * counterfactual(table, against="others"), counterfactual(table).double())


@quick
@given(tables())
def test_where_nobody_acted_otherwise(table: StepTable) -> None:  # rule 3
    alike = table.replace(action_key=["go"] * len(table))
    for against in ("all", "others"):
        assert close(counterfactual(alike, against=against), [0.0] * len(table))  # type: ignore[arg-type]


@quick
@given(tables())
def test_a_share_of_it(table: StepTable) -> None:  # rule 4
    assert torch.equal(counterfactual(table, share=0.0), table["reward"])
    half = counterfactual(table, share=0.5)
    assert close(half, (counterfactual(table) + table["reward"]) / 2)


def test_a_replay() -> None:  # rules 5, 6
    nan = float("nan")
    table = team(reward=[0, 1, 0, 0], without=[0.25, 1.0, 0.0, 0.5])
    assert close(counterfactual(table, against="replay"), [0.75, 0.0, 0.0, -0.5])
    with pytest.raises(InvalidData, match=r"trajectory b(.|\n)*not played again without `solve`"):
        counterfactual(table.replace(without=[0.25, 1.0, 0.0, nan]), against="replay")
    with pytest.raises(MissingColumn, match="without"):
        counterfactual(team(), against="replay")
