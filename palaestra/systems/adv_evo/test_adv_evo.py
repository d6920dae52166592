"""The public baseline and its teams.

1. Teams given by name are compared.
2. `teams` is refused if `by` has no team, because it would have no effect.
3. A, each return counted once, sums to 0 over each team.
4. With one agent it is REINFORCE with the batch's mean.
5. Exchanging the returns of two agents of a team does not change the baseline.
6. An agent that acts more often does not count more.
7. Teams from the option give the same as those of the column.
8. With few episodes a public baseline has less variance than private ones.
9. Whitened, every team has deviation 1.
10. Agents in no team or in two, one team for all, and opponents in one team are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import segment_std, segment_sum
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import reinforce
from palaestra.parts.filters import whiten
from palaestra.systems.adv_evo.public_baseline import public_baseline
from tests.parts.tables import close, quick, tables

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
        with pytest.raises(RecipeError, match=r"has no effect, because `by` is(.|\n)*Add `team` to `by`"):
            public_baseline(TABLE, teams=teams, by=by)


def match(**columns: Any) -> StepTable:
    """Two matches of two turns each."""
    base: dict[str, Any] = {
        "group": ["g"] * 4,
        "trajectory": ["a", "a", "b", "b"],
        "agent": ["first", "last", "first", "last"],
        "turn": [0, 1, 0, 1],
        "reward": [1.0, -1.0, 0.0, 0.5],
    }
    return StepTable(**{**base, **columns})


@pytest.mark.parametrize("center", ["mean", "leave_one_out"])
@quick
@given(table=tables())
def test_teams_sum_to_zero(center: Any, table: StepTable) -> None:  # rule 3
    key = table.key("team")
    each = table.key("trajectory", "agent")
    share = 1 / torch.bincount(each.codes, minlength=each.size)[each.codes]
    assert close(segment_sum(public_baseline(table, center=center) * share, by=key), torch.zeros(key.size))


@quick
@given(tables(agents=("M",), one_row=True, one_token=True))
def test_one_agent_a_team(table: StepTable) -> None:  # rule 4
    assert close(public_baseline(table), reinforce(table, baseline="batch"))
    assert close(public_baseline(table, whiten="token"), whiten(table, reinforce(table)), tolerance=1e-3)


@given(st.permutations([0.2, 0.8, 0.5, 1.0]))
def test_exchanged_returns_leave_the_baseline(reward: list[float]) -> None:  # rule 5
    table = match(reward=reward, team=["blue"] * 4)
    assert close(table["reward"] - public_baseline(table), [0.625] * 4)


def test_acting_more_often_does_not_count_more() -> None:  # rule 6
    table = match(trajectory=["a", "a", "a", "b"], agent=["x"] * 4, turn=[0, 1, 2, 0], team=["blue"] * 4,
                  reward=[0, 0, 1, 0])  # fmt: skip
    assert public_baseline(table).tolist() == [0.5, 0.5, 0.5, -0.5]
    assert public_baseline(table, whiten="return")[3] == pytest.approx(-(0.5**0.5), abs=1e-5)
    tokens = public_baseline(table.replace(token_count=[1, 1, 1, 3]), whiten="token")
    assert tokens.tolist() == pytest.approx([0.9129, 0.9129, 0.9129, -0.9129], abs=1e-4)  # √(5/6)


@quick
@given(tables())
def test_teams_from_the_option(table: StepTable) -> None:  # rule 7
    named = {"blue": ("S",), "red": ("M",)}
    assert torch.equal(public_baseline(table.replace(team=None), teams=named), public_baseline(table))
    assert torch.equal(public_baseline(table, teams=named), public_baseline(table))
    assert torch.equal(public_baseline(table.replace(team=None), by=()), public_baseline(table, by=()))


def test_a_public_baseline_is_less_noisy() -> None:  # rule 8
    dice = torch.Generator().manual_seed(0)
    size, episodes, agents = 2000, 2, 3  # `size` batches at once, each one a group
    rows = size * episodes * agents
    table = StepTable(
        group=torch.arange(rows) // (episodes * agents),
        trajectory=torch.arange(rows) // agents,
        agent=[("d", "e", "f")[i % agents] for i in range(rows)],
        turn=torch.arange(rows) % agents,
        reward=torch.randn(rows, generator=dice),
        team=["blue"] * rows,
    )
    public = public_baseline(table, by=("group", "team"), center="leave_one_out").var()
    private = public_baseline(table, by=("group", "agent"), center="leave_one_out").var()
    assert public == pytest.approx(1 + 1 / 5, rel=0.05)  # σ² (1 + 1/(n − 1)) with n = 6 returns
    assert private == pytest.approx(1 + 1 / 1, rel=0.05)  # … and with n = 2


def test_whitened_teams() -> None:  # rule 9
    table = match(reward=[1.0, 5.0, 0.0, 25.0], team=["red", "blue"] * 2)
    deviation = segment_std(public_baseline(table, whiten="return"), by=table.key("team"))
    assert deviation.tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_what_the_public_baseline_refuses() -> None:  # rule 10
    with pytest.raises(InvalidData, match=r"last is in no team"):
        public_baseline(match(team=["red", None] * 2))
    with pytest.raises(InvalidData, match=r"last is in no team(.|\n)*first"):
        public_baseline(match(), teams={"red": ("first",), "blue": ()})
    with pytest.raises(InvalidData, match="agent `last` is in two teams: red and blue"):
        public_baseline(match(team=["red", "blue", "red", "red"]))
    with pytest.raises(InvalidData, match="agent `first` is in two teams: red and blue"):
        public_baseline(match(), teams={"red": ("first",), "blue": ("first", "last")})
    with pytest.raises(RecipeError, match="the teams are: all"):
        public_baseline(match(), teams={"all": ("first", "last")})
    with pytest.raises(RecipeError, match=r"mixes agents of the environment's teams blue and red(.|\n)*Separate them"):
        public_baseline(match(team=["red", "blue"] * 2), teams={"all": ("first", "last"), "none": ()})
    with pytest.raises(MissingColumn, match="team"):
        public_baseline(match())
