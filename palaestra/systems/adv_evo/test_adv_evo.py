"""Teams of the public baseline: (1) given by name they are compared; (2) where `by` has no team they are refused, for
nothing would be compared by them. What it computes stands in test_games_methods.
"""

from __future__ import annotations

import pytest

from palaestra.data import StepTable
from palaestra.errors import RecipeError
from palaestra.systems.adv_evo.public_baseline import public_baseline

TABLE = StepTable(
    group=["g"] * 4,
    trajectory=["a", "a", "b", "b"],
    agent=["red", "blue"] * 2,
    turn=[0, 1, 0, 1],
    reward=[1.0, 0.0, 0.0, 0.5],
)
TEAMS = {"attack": ("red",), "defense": ("blue",)}


def test_1_named_teams() -> None:
    assert public_baseline(TABLE, teams=TEAMS).tolist() == [0.5, -0.25, -0.5, 0.25]
    assert public_baseline(TABLE, teams=TEAMS, by=("group", "team")).tolist() == [0.5, -0.25, -0.5, 0.25]


@pytest.mark.parametrize("by", [("agent",), ("group",), ()])
def test_2_teams_that_nothing_is_compared_by(by: tuple[str, ...]) -> None:
    for teams in (TEAMS, {"misspelled": ("nobody",)}):
        with pytest.raises(RecipeError, match=r"nothing is compared by team(.|\n)*Add `team` to `by`"):
            public_baseline(TABLE, teams=teams, by=by)
