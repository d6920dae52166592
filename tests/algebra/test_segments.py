"""Segment operations equal plain loops: (1) sum, count, mean, deviation, range and rank of each set; (2) rows of
weight 0 change nothing; (3) the reverse scan is the recurrence; (4) keys combine and renumber; (5) nothing in,
nothing out; (6) values are equal up to the rounding of float32 sums, whole numbers exactly.
"""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.algebra import (
    reverse_scan,
    segment_count,
    segment_equal,
    segment_mean,
    segment_range,
    segment_rank,
    segment_std,
    segment_sum,
)
from palaestra.data import Key
from palaestra.data.keys import compact

quick = settings(max_examples=40, deadline=None, derandomize=True)
Rows = list[tuple[int, float, int]]
rows = st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10, width=32), st.integers(0, 1)), min_size=1, max_size=12)


def key_of(rows: Rows) -> Key:
    codes = torch.tensor([code for code, _, _ in rows])
    return Key(codes, 4, ("set",), torch.tensor([float(w) for _, _, w in rows]))


@quick
@given(rows)
def test_statistics(rows: Rows) -> None:  # rules 1 and 2
    key, values = key_of(rows), torch.tensor([x for _, x, _ in rows])
    for code in range(4):
        own = [x for c, x, w in rows if c == code and w]
        found = [f(values, by=key)[code].item() for f in (segment_sum, segment_mean, segment_std, segment_range)]
        mean = statistics.fmean(own) if own else 0.0
        std = statistics.stdev(own) if len(own) > 1 else 0.0
        expected = [sum(own), mean, std, max(own) - min(own) if own else 0.0]
        assert found == pytest.approx(expected, abs=1e-6)
        assert segment_count(by=key)[code] == len(own)
        population = segment_std(values, by=key, ddof=0)[code].item()
        assert population == pytest.approx(statistics.pstdev(own) if own else 0.0, abs=1e-6)


@quick
@given(rows)
def test_rank(rows: Rows) -> None:  # rule 1
    values = torch.tensor([x for _, x, _ in rows])
    found = segment_rank(values, by=key_of(rows)).tolist()
    for place, (code, x, _) in enumerate(rows):
        smaller = [1 for p, (c, y, _) in enumerate(rows) if c == code and (y < x or (y == x and p < place))]
        assert found[place] == len(smaller)


@quick
@given(st.lists(st.tuples(st.floats(-3, 3), st.sampled_from([0.0, 0.5, 0.9, 1.0])), max_size=40))
def test_reverse_scan(chain: list[tuple[float, float]]) -> None:  # rule 3
    values = torch.tensor([x for x, _ in chain], dtype=torch.float64)
    factors = torch.tensor([c for _, c in chain], dtype=torch.float64)
    expected, after = [0.0] * len(chain), 0.0
    for place in range(len(chain) - 1, -1, -1):
        after = expected[place] = chain[place][0] + chain[place][1] * after
    found = reverse_scan(values, factors)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert values.tolist() == [x for x, _ in chain], "the input is untouched"


def test_reverse_scan_of_long_chains() -> None:  # rule 3
    found = reverse_scan(torch.ones(5000, dtype=torch.float64), torch.full((5000,), 0.99, dtype=torch.float64))
    assert found[0].item() == pytest.approx((1 - 0.99**5000) / 0.01)
    assert found[-1].item() == 1.0


@quick
@given(rows, st.data())
def test_keys_combine(rows: Rows, data: st.DataObject) -> None:  # rule 4
    one = key_of(rows)
    codes = [data.draw(st.integers(0, 2)) for _ in rows]
    both = one & Key(torch.tensor(codes), 3, ("other",))
    assert both.names == ("set", "other") and both.weight is one.weight
    pairs = [(a, b) for (a, _, _), b in zip(rows, codes, strict=True)]
    assert both.size == len(set(pairs))
    for i in range(len(rows)):
        for j in range(len(rows)):
            assert (both.codes[i] == both.codes[j]) == (pairs[i] == pairs[j])


def test_keys_spread() -> None:  # rule 4
    key = Key(torch.tensor([0, 1]), 2, ("set",), torch.tensor([1.0, 0.0]))
    tokens = key.spread(torch.tensor([0, 0, 1]))
    assert tokens.codes.tolist() == [0, 0, 1] and tokens.weights.tolist() == [1.0, 1.0, 0.0]
    assert key.spread(torch.tensor([1, 1]), weight=torch.tensor([0.5, 0.5])).weights.tolist() == [0.5, 0.5]
    assert compact(torch.tensor([7, -2, 7]))[0].tolist() == [1, 0, 1]


def test_nothing() -> None:  # rule 5
    key = Key(torch.zeros(0, dtype=torch.int64), 2)
    none = torch.zeros(0)
    for statistic in (segment_sum, segment_mean, segment_std, segment_range):
        assert statistic(none, by=key).tolist() == [0.0, 0.0]
    assert segment_rank(none, by=key).tolist() == [] and reverse_scan(none.double(), none.double()).tolist() == []


def test_equal_up_to_rounding() -> None:  # rule 6
    key = Key(torch.tensor([0, 0, 1, 1, 2]), 4)
    assert segment_equal(torch.tensor([1.0, 1 + 3e-7, 1.0, 1.00001, 5.0]), by=key).tolist() == [True, False, True, True]
    other = segment_equal(torch.tensor([120.0, 120.00001, 0.0, 1e-30, 5.0]), by=key)
    assert other.tolist() == [True, False, True, True]
    large = torch.tensor([10**7, 10**7 + 1, 3, 3, 0])
    assert segment_equal(large, by=key).tolist() == [False, True, True, True]
    padded = Key(key.codes, 4, (), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]))
    assert segment_equal(torch.tensor([1.0, 9.0, 2.0, 2.0, 5.0]), by=padded).tolist() == [True] * 4
