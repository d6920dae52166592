"""Shapley and Banzhaf values:

1. The published table of four modules has Shapley's shares, and Banzhaf's, which do not sum to the gain.
2. Efficiency, symmetry, dummy and additivity hold for every game.
3. Shapley's share is the mean contribution over all orders.
4. A pipeline whose stages multiply has its hand-derived shares.
5. Missing coalitions, values that are not finite and more than 10 members are refused.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.errors import InvalidData
from palaestra.systems.shapley.coalitions import Coalition, banzhaf, coalitions, shapley

quick = settings(max_examples=25, deadline=None, derandomize=True)
PUBLISHED = {  # arXiv 2502.00510: planning, reasoning, action, reflection
    "": 0.20, "P": 0.30, "R": 0.28, "A": 0.25, "F": 0.20, "PR": 0.50, "PA": 0.40, "PF": 0.31, "RA": 0.36, "RF": 0.27,
    "AF": 0.26, "PRA": 0.66, "PRF": 0.52, "PAF": 0.41, "RAF": 0.37, "PRAF": 0.70,
}  # fmt: skip
Game = dict[Coalition, float]


@st.composite
def games(draw: st.DrawFn, *, most: int = 5) -> Game:
    """A value between −1 and 1 for each coalition of one to `most` members."""
    members = "abcdefgh"[: draw(st.integers(1, most))]
    return {each: draw(st.integers(-64, 64)) / 64 for each in coalitions(members)}


def members_of(game: Game) -> list[str]:
    return sorted(max(game, key=len))


def test_the_published_table() -> None:  # rule 1
    game = {frozenset(name): value for name, value in PUBLISHED.items()}
    found, other = shapley(game, "PRAF"), banzhaf(game, "PRAF")
    assert {k: round(v, 4) for k, v in found.items()} == {"P": 0.2058, "R": 0.1725, "A": 0.1075, "F": 0.0142}
    assert {k: round(v, 4) for k, v in other.items()} == pytest.approx(
        {"P": 0.2012, "R": 0.1663, "A": 0.1037, "F": 0.0112}, abs=1e-4
    )
    assert sum(found.values()) == pytest.approx(0.5) and sum(other.values()) == pytest.approx(0.4825)


@quick
@given(games())
def test_efficiency(game: Game) -> None:  # rule 2
    members = members_of(game)
    assert sum(shapley(game, members).values()) == pytest.approx(game[frozenset(members)] - game[frozenset()])


@quick
@given(games(most=4))
def test_equal_members_have_equal_shares(game: Game) -> None:  # rule 2
    members = members_of(game)
    twins = {**game, **{s | {"twin"}: game[s | {members[0]}] for s in game if members[0] not in s}}
    twins |= {s | {"twin"}: game[s] + 0.25 * len(s) for s in game if members[0] in s}
    found = shapley(twins, [*members, "twin"])
    assert found["twin"] == pytest.approx(found[members[0]])


@quick
@given(games(most=4))
def test_a_dummy_has_nothing_and_changes_nothing(game: Game) -> None:  # rule 2
    with_dummy = {**game, **{s | {"dummy"}: value for s, value in game.items()}}
    found = shapley(with_dummy, [*members_of(game), "dummy"])
    assert found.pop("dummy") == 0
    assert found == pytest.approx(shapley(game, members_of(game)))


@quick
@given(games(), st.integers(0, 99))
def test_additivity(game: Game, seed: int) -> None:  # rule 2
    members = members_of(game)
    other = {s: math.sin(seed + 7 * len(s) + sum(map(ord, s))) for s in game}
    both = shapley({s: game[s] + other[s] for s in game}, members)
    one, two = shapley(game, members), shapley(other, members)
    assert both == pytest.approx({name: one[name] + two[name] for name in members})


@quick
@given(games(most=4))
def test_all_orders(game: Game) -> None:  # rule 3
    members = members_of(game)
    expected = dict.fromkeys(members, 0.0)
    for order in itertools.permutations(members):
        for place, name in enumerate(order):
            before = frozenset(order[:place])
            expected[name] += (game[before | {name}] - game[before]) / math.factorial(len(members))
    assert shapley(game, members) == pytest.approx(expected)


def test_a_pipeline() -> None:  # rule 4
    """Two stages that succeed with 0.5 and 0.8 without their member, and with 1 with it."""
    worth = {"a": 0.5, "b": 0.8}
    game = {s: math.prod(1.0 if name in s else p for name, p in worth.items()) for s in coalitions("ab")}
    assert shapley(game, "ab") == pytest.approx({"a": (0.4 + 0.5) / 2, "b": (0.1 + 0.2) / 2})


def test_what_is_refused() -> None:  # rule 5
    game = dict.fromkeys(coalitions("abc"), 1.0)
    with pytest.raises(InvalidData, match=r"the value of \{a, c\} is missing; an unknown value is not 0"):
        shapley({s: v for s, v in game.items() if s != {"a", "c"}}, "abc")
    with pytest.raises(InvalidData, match=r"the value of \{b\} is nan"):
        shapley({**game, frozenset("b"): math.nan}, "abc")
    with pytest.raises(InvalidData, match="11 members have 2048 coalitions"):
        banzhaf(game, "abcdefghijk")
    ten = {s: float(len(s)) for s in coalitions("abcdefghij")}
    assert shapley(ten, "abcdefghij")["j"] == pytest.approx(1.0)
