"""What must hold of drawing tokens:

1. uniform numbers depend on seed and place only, lie in [0, 1), and look uniform;
2. without options the distribution is the softmax of the logits, with temperature that of logits / temperature;
3. top-k keeps exactly k tokens, top-p the fewest whose probability reaches p, and both renormalize;
4. temperature 0 puts all probability on the likeliest token: log-probability 0, entropy 0;
5. draws follow the distribution, and never give a token that has no probability;
6. entropy is −Σ p log p of the distribution that was sampled from;
7. a row's numbers do not depend on the other rows;
8. the drawn token is the one at which the sum of all probabilities, token by token, passes the uniform number, for any
   size of the vocabulary and number of rows;
9. where logits are not finite, so is the log-probability, also at temperature 0; a logit of −∞ forbids a token.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.engines.sampling import CACHED, SPAN, draw, log_distribution, sample, uniform


def logits_of(seed: int, rows: int = 3, size: int = 50) -> torch.Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def distribution(logits: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    rows = len(logits)
    return log_distribution(logits, temperature=[temperature] * rows, top_k=[top_k] * rows, top_p=[top_p] * rows)


def test_uniform_numbers_depend_on_seed_and_place_only():  # rule 1
    together = uniform([7, 8, -1, 2**70], [0, 5, 3, 1])
    alone = [uniform([seed], [place])[0] for seed, place in [(7, 0), (8, 5), (-1, 3), (2**70, 1)]]
    assert together.tolist() == alone
    assert len(set(together.tolist())) == 4


@pytest.mark.parametrize("vary", ["seed", "place"])
def test_uniform_numbers_look_uniform(vary):  # rule 1
    count = 20_000
    numbers = uniform(range(count), [0] * count) if vary == "seed" else uniform([3] * count, range(count))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    chi_square = ((counts - count / 20) ** 2 / (count / 20)).sum()
    assert chi_square < 50  # 19 degrees of freedom: p < 0.0002
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_temperature_divides_logits():  # rule 2
    logits = logits_of(0)
    torch.testing.assert_close(distribution(logits), torch.log_softmax(logits, -1))
    torch.testing.assert_close(distribution(logits, temperature=0.5), torch.log_softmax(2 * logits, -1))


@given(seed=st.integers(0, 1000), k=st.integers(1, 60), p=st.floats(0.01, 0.999) | st.just(1.0))
@settings(max_examples=60, deadline=None)
def test_top_k_and_top_p_keep_the_fewest_and_renormalize(seed, k, p):  # rule 3
    logits = logits_of(seed, rows=1)
    probabilities = torch.softmax(logits[0].double(), -1)
    order = probabilities.argsort(descending=True)[:k]
    ranked = probabilities[order] / probabilities[order].sum()
    enough = ranked.cumsum(0) - ranked < p - 1e-6 if p < 1 else torch.ones_like(ranked, dtype=torch.bool)
    kept = order[enough]
    expected = torch.full_like(probabilities, -math.inf)
    expected[kept] = (probabilities[kept] / probabilities[kept].sum()).log()
    torch.testing.assert_close(distribution(logits, top_k=k, top_p=p)[0].double(), expected, atol=1e-5, rtol=1e-5)


def test_ties_do_not_widen_top_k():  # rule 3
    kept = distribution(torch.zeros(1, 10), top_k=3)[0].isfinite().nonzero()[:, 0]
    assert kept.tolist() == [0, 1, 2]


def test_greedy_is_a_point_mass():  # rule 4
    logits = logits_of(1)
    drawn = draw(distribution(logits, temperature=0.0), np.array([0.0, 0.5, 1 - 2**-53]), entropy=True)
    assert drawn.tokens.tolist() == logits.argmax(-1).tolist()
    assert drawn.logprobs.tolist() == [0, 0, 0] and drawn.entropy is not None and drawn.entropy.tolist() == [0, 0, 0]


def test_draws_follow_the_distribution():  # rule 5
    count = 20_000
    logprobs = distribution(logits_of(2, rows=1, size=12), top_k=6)
    drawn = draw(logprobs.expand(count, -1), uniform(range(count), [0] * count))
    frequency = torch.bincount(drawn.tokens, minlength=12) / count
    torch.testing.assert_close(frequency, logprobs[0].exp(), atol=0.015, rtol=0)
    assert frequency[logprobs[0].isinf()].sum() == 0


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_extreme_numbers_give_possible_tokens(number):  # rule 5
    logprobs = distribution(logits_of(3, rows=40), top_k=2)
    drawn = draw(logprobs, np.full(40, number))
    assert drawn.logprobs.isfinite().all()


def test_entropy_of_what_was_sampled_from():  # rule 6
    logprobs = distribution(logits_of(4), top_k=5, temperature=0.7)
    kept = logprobs.masked_fill(logprobs.isinf(), 0)
    expected = -(logprobs.exp() * kept).sum(-1)
    torch.testing.assert_close(draw(logprobs, np.zeros(3), entropy=True).entropy, expected)
    assert draw(logprobs, np.zeros(3)).entropy is None


def test_rows_with_different_options_do_not_touch_each_other():  # rule 7
    logits = logits_of(5, rows=4)
    options = {"temperature": [1.0, 0.0, 0.3, 2.0], "top_k": [0, 0, 5, 0], "top_p": [1.0, 1.0, 0.9, 0.5]}
    together = log_distribution(logits, **options)
    for row in range(4):
        alone = log_distribution(logits[row : row + 1], **{name: [values[row]] for name, values in options.items()})
        assert torch.equal(together[row], alone[0])


@given(size=st.integers(1, 7 * SPAN), seed=st.integers(0, 1000), top_k=st.sampled_from([0, 0, 1, 5]))
@settings(max_examples=80, deadline=None)
def test_the_token_is_where_the_sum_passes_the_number(size, seed, top_k):  # rule 8
    rows = 7
    logits, numbers = 2 * logits_of(seed, rows, size), uniform(range(rows), [seed] * rows)
    logprobs = distribution(logits, top_k=top_k)
    cumulative = logprobs.exp().double().cumsum(-1).numpy()
    expected = [int((line <= number * line[-1]).sum()) for line, number in zip(cumulative, numbers, strict=True)]
    assert draw(logprobs, numbers).tokens.tolist() == expected
    extreme = draw(logprobs, np.resize([0.0, 1 - 2**-53], rows))
    assert extreme.logprobs.isfinite().all()


def test_many_rows_are_drawn_as_few():  # rule 8
    rows, size = 5, CACHED // 2 + 3
    logits, numbers = logits_of(6, rows, size), uniform(range(rows), [0] * rows)
    options = {"temperature": [1.0, 0.0, 0.3, 2.0, 1.0], "top_k": [0, 0, 5, 0, 1], "top_p": [1.0, 1.0, 0.9, 0.5, 1.0]}
    together = sample(logits, numbers, **options, entropy=True)
    for row in range(rows):
        mine = {name: [values[row]] for name, values in options.items()}
        alone = sample(logits[row : row + 1], numbers[row : row + 1], **mine, entropy=True)
        assert [x[0].item() for x in alone] == [x[row].item() for x in together]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("top_k", [0, 3])
def test_what_is_not_finite_shows(temperature, top_k):  # rule 9
    logits = logits_of(7, rows=4, size=5 * SPAN + 1)
    logits[0, 300], logits[1, 5], logits[2] = math.nan, math.inf, -math.inf
    logits[3, 3:] = -math.inf
    numbers, rows = uniform(range(4), [0] * 4), 4
    drawn = sample(logits, numbers, temperature=[temperature] * rows, top_k=[top_k] * rows, top_p=[1.0] * rows)
    assert drawn.logprobs.isfinite().tolist() == [False, False, False, True]
    assert drawn.tokens[3] < 3
