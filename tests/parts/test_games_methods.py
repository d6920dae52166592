"""MARS, credit in games: (1) its A sums to 0 over each seat; (2) it is generalized advantage estimation with gamma =
lam = 1 and the seat's mean as value, along each seat's turns and along a whole trajectory; (3) with one seat and one
turn it is Dr. GRPO over the batch; (4) games are kept apart, and a table that names none is of one; (5) a lone turn
gets 0, or its reward to go, or an error; (6) the mean of unique values counts each value once, and 0; (7) a missing
seat, a missing game on some rows, and options that do not exist are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import reward_to_go, segment_mean, segment_sum
from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import dr_grpo
from palaestra.parts.games import mars
from tests.messages import told
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
    judged = table.replace(row_value=value, terminated=[True] * len(table), truncated=None, bootstrap_value=None)
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
        with told(InvalidData, "2 peer sets"):
            mars(lone, center=center, singleton="error")


def test_values_count_once() -> None:  # rule 6
    table = match(agent=["x"] * 4, trajectory=list("abcd"), turn=[0] * 4, reward=[3.0, 3.0, 3.0, -1.0])
    assert mars(table, center="unique").tolist() == pytest.approx([7 / 3] * 3 + [-5 / 3])  # (3 − 1 + 0) / 3
    zero = table.replace(reward=[3.0, 3.0, 0.0, 0.0])
    assert mars(zero, center="unique").tolist() == [1.5, 1.5, -1.5, -1.5]


def test_what_mars_refuses() -> None:  # rule 7
    with pytest.raises(InvalidData, match="column `agent`"):
        match(agent=["first", None, "first", None])
    with told(InvalidData, "2 of 4") as caught:
        mars(match(game=["chess", "chess", None, None]))
    assert "in every episode, or in none" in str(caught.value)
    with pytest.raises(RecipeError, match="center"):
        mars(match(), center="median")
    with pytest.raises(MissingColumn, match="stratum"):
        mars(match(), by=("stratum", "agent"))
