"""Credit in games and between teams.

MARS: (1) its A sums to 0 over each seat; (2) it is generalized advantage estimation with gamma = lam = 1 and the
seat's mean as value, along each seat's turns and along a whole trajectory; (3) with one seat and one turn it is Dr.
GRPO over the batch; (4) games are kept apart, and a table that names none is of one; (5) a lone turn gets 0, or its
reward to go, or an error; (6) the mean of unique values counts each value once, and 0; (7) a missing seat, a missing
game on some rows, and options that do not exist are refused.
Public baseline: (8) its A, each return once, sums to 0 over each team; (9) with one agent it is REINFORCE with the
batch's mean; (10) exchanging the returns of two agents of a team leaves the baseline; (11) acting more often does not
count more; (12) teams from the option are those of the column; (13) with few episodes a public baseline is less noisy
than private ones; (14) whitened, every team has deviation 1; (15) agents in no team or in two, one team for all, and
opponents in one team are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import reward_to_go, segment_mean, segment_std, segment_sum
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import dr_grpo, reinforce
from palaestra.parts.filters import whiten
from palaestra.parts.games import mars
from palaestra.systems.adv_evo.public_baseline import public_baseline
from tests.parts.tables import close, quick, tables

CHAINS = [("trajectory", "agent"), ("trajectory",)]


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


# ---- MARS -------------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_seats_sum_to_zero(table: StepTable) -> None:  # rule 1
    key = table.key("game", "agent")
    assert close(segment_sum(mars(table), by=key), torch.zeros(key.size))


@pytest.mark.parametrize("chain", CHAINS)
@quick
@given(table=tables())
def test_it_is_a_difference_to_a_value(chain: tuple[str, ...], table: StepTable) -> None:  # rule 2
    key = table.key("game", "agent")
    value = segment_mean(reward_to_go(table, gamma=1.0, by=chain), by=key)[key.codes]
    judged = table.replace(value=value, terminated=[True] * len(table), truncated=None, value_end=None)
    found = ppo(judged, gamma=1.0, lam=1.0, whiten=False, chain=chain)
    peers = torch.bincount(key.codes, minlength=key.size)[key.codes] > 1
    assert close(mars(table, chain=chain), torch.where(peers, found.advantage, 0.0))


@quick
@given(tables(agents=("solo",), one_row=True))
def test_one_seat_and_one_turn(table: StepTable) -> None:  # rule 3
    one = table.replace(game=None)
    assert torch.equal(mars(one), dr_grpo(one.replace(group=["g"] * len(one))))


def test_games_are_kept_apart() -> None:  # rule 4
    two = match(game=["chess", "chess", "go", "go"], agent=["first"] * 4, turn=[0, 1, 0, 1])
    assert mars(two).tolist() == [0.5, -0.5, 0.0, 0.0]
    assert torch.equal(mars(match()), mars(match(game=["chess"] * 4)))
    assert torch.equal(mars(two, by=("agent",)), mars(two.replace(game=None)))


def test_a_lone_turn() -> None:  # rule 5
    lone = match(agent=["first", "last", "first", "third"])
    for center in ("mean", "unique"):
        assert mars(lone, center=center)[[1, 3]].tolist() == [0.0, 0.0]
        assert mars(lone, center=center, singleton="raw")[[1, 3]].tolist() == [-1.0, 0.5]
        with pytest.raises(InvalidData, match="2 peer sets have a single member"):
            mars(lone, center=center, singleton="error")


def test_values_count_once() -> None:  # rule 6
    table = match(agent=["x"] * 4, trajectory=list("abcd"), turn=[0] * 4, reward=[3.0, 3.0, 3.0, -1.0])
    assert mars(table, center="unique").tolist() == pytest.approx([7 / 3] * 3 + [-5 / 3])  # (3 − 1 + 0) / 3
    zero = table.replace(reward=[3.0, 3.0, 0.0, 0.0])
    assert mars(zero, center="unique").tolist() == [1.5, 1.5, -1.5, -1.5]


def test_what_mars_refuses() -> None:  # rule 7
    with pytest.raises(InvalidData, match="column `agent`"):
        match(agent=["first", None, "first", None])
    with pytest.raises(InvalidData, match="2 of 4 rows are of no game") as caught:
        mars(match(game=["chess", "chess", None, None]))
    assert "in every episode, or in none" in str(caught.value)
    with pytest.raises(RecipeError, match="center"):
        mars(match(), center="median")
    with pytest.raises(MissingColumn, match="stratum"):
        mars(match(), by=("stratum", "agent"))


# ---- the public baseline ----------------------------------------------------------------------------------
@pytest.mark.parametrize("center", ["mean", "leave_one_out"])
@quick
@given(table=tables())
def test_teams_sum_to_zero(center: Any, table: StepTable) -> None:  # rule 8
    key = table.key("team")
    each = table.key("trajectory", "agent")
    share = 1 / torch.bincount(each.codes, minlength=each.size)[each.codes]
    assert close(segment_sum(public_baseline(table, center=center) * share, by=key), torch.zeros(key.size))


@quick
@given(tables(agents=("M",), one_row=True, one_token=True))
def test_one_agent_a_team(table: StepTable) -> None:  # rule 9
    assert close(public_baseline(table), reinforce(table, baseline="batch"))
    assert close(public_baseline(table, whiten="token"), whiten(table, reinforce(table)), tolerance=1e-3)


@given(st.permutations([0.2, 0.8, 0.5, 1.0]))
def test_exchanged_returns_leave_the_baseline(reward: list[float]) -> None:  # rule 10
    table = match(reward=reward, team=["blue"] * 4)
    assert close(table["reward"] - public_baseline(table), [0.625] * 4)


def test_acting_more_often_does_not_count_more() -> None:  # rule 11
    table = match(trajectory=["a", "a", "a", "b"], agent=["x"] * 4, turn=[0, 1, 2, 0], team=["blue"] * 4,
                  reward=[0, 0, 1, 0])  # fmt: skip
    assert public_baseline(table).tolist() == [0.5, 0.5, 0.5, -0.5]
    assert public_baseline(table, whiten="return")[3] == pytest.approx(-(0.5**0.5), abs=1e-5)
    tokens = public_baseline(table.replace(token_count=[1, 1, 1, 3]), whiten="token")
    assert tokens.tolist() == pytest.approx([0.9129, 0.9129, 0.9129, -0.9129], abs=1e-4)  # √(5/6)


@quick
@given(tables())
def test_teams_from_the_option(table: StepTable) -> None:  # rule 12
    named = {"blue": ("S",), "red": ("M",)}
    assert torch.equal(public_baseline(table.replace(team=None), teams=named), public_baseline(table))
    assert torch.equal(public_baseline(table, teams=named), public_baseline(table))
    assert torch.equal(public_baseline(table.replace(team=None), by=()), public_baseline(table, by=()))


def test_a_public_baseline_is_less_noisy() -> None:  # rule 13
    dice = torch.Generator().manual_seed(0)
    size, episodes, agents = 2000, 2, 3  # so many batches at once, as groups
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


def test_whitened_teams() -> None:  # rule 14
    table = match(reward=[1.0, 5.0, 0.0, 25.0], team=["red", "blue"] * 2)
    deviation = segment_std(public_baseline(table, whiten="return"), by=table.key("team"))
    assert deviation.tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_what_the_public_baseline_refuses() -> None:  # rule 15
    with pytest.raises(InvalidData, match=r"last is in no team"):
        public_baseline(match(team=["red", None] * 2))
    with pytest.raises(InvalidData, match=r"last is in no team(.|\n)*first"):
        public_baseline(match(), teams={"red": ("first",), "blue": ()})
    with pytest.raises(InvalidData, match="agent `last` is in two teams: red and blue"):
        public_baseline(match(team=["red", "blue", "red", "red"]))
    with pytest.raises(InvalidData, match="agent `first` is in two teams: red and blue"):
        public_baseline(match(), teams={"red": ("first",), "blue": ("first", "last")})
    with pytest.raises(RecipeError, match="there is one team: all"):
        public_baseline(match(), teams={"all": ("first", "last")})
    with pytest.raises(RecipeError, match=r"mixes agents of the environment's teams blue and red(.|\n)*Separate them"):
        public_baseline(match(team=["red", "blue"] * 2), teams={"all": ("first", "last"), "none": ()})
    with pytest.raises(MissingColumn, match="team"):
        public_baseline(match())
