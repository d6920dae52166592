"""ReNorm:

1. Every step's sign is the outcome's, or the reward is 0.
2. Scores of ½ give outcome − ½.
3. With shift 0 it is the plain sum; the difference to ReNorm is a constant per step.
4. Values out of range, steps without a score and final steps with one are refused, with the row; a truncated episode
   may have a score on its last step.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.ppr.renorm import renorm
from tests.parts.small_tables import NAN, judged
from tests.parts.tables import close, quick

Scores = st.lists(st.floats(0, 1, width=16), min_size=1, max_size=6)


@quick
@given(Scores, st.sampled_from([0.0, 1.0]), st.sampled_from([0.25, 1.0]))
def test_signs(scores: list[float], outcome: float, weight: float) -> None:  # rule 1
    reward = renorm(judged(scores, outcome), process_weight=weight)
    assert bool((reward * (outcome - 0.5) >= 0).all())


@quick
@given(st.integers(1, 6), st.floats(0, 1, width=16))
def test_undecided_judge(size: int, outcome: float) -> None:  # rule 2
    assert close(renorm(judged([0.5] * size, outcome)), [outcome - 0.5] * (size + 1))


@quick
@given(Scores, st.sampled_from([0.0, 0.5, 1.0]))
def test_plain_sum(scores: list[float], outcome: float) -> None:  # rule 3
    table = judged(scores, outcome)
    assert close(renorm(table, shift=0.0), [*(s + outcome for s in scores), outcome])
    assert close(renorm(table, shift=0.0) - renorm(table), [1.0] * len(scores) + [0.5])


def test_what_renorm_refuses() -> None:  # rule 4
    with pytest.raises(InvalidData, match=r"column `process`(.|\n)*not in \[0, 1\]; the first is 3"):
        renorm(judged([3.0, 0.5], 1.0))
    assert renorm(judged([3.0, 0.5], 1.0), maximum=5.0).tolist() == pytest.approx([0.6, 0.1, 0.5])
    with pytest.raises(InvalidData, match=r"column `outcome`(.|\n)*the first is -1"):
        renorm(judged([0.5], -1.0))
    with pytest.raises(InvalidData, match=r"turn 1(.|\n)*it is not the final step and has no score"):
        renorm(judged([0.5, NAN], 1.0))
    with pytest.raises(InvalidData, match=r"turn 1(.|\n)*it is the final step and has a score"):
        renorm(judged([0.5], 1.0, process=[0.5, 0.5]))
    with pytest.raises(MissingColumn, match="process"):
        renorm(judged([0.5], 1.0, process=None))
    for options in ({"maximum": 0.0}, {"process_weight": 2.0}, {"shift": -1.0}):
        with pytest.raises(RecipeError, match=f"cannot take `{next(iter(options))}: "):
            renorm(judged([0.5], 1.0), **options)


def test_an_episode_that_was_cut_off() -> None:  # rule 4
    cut = {"truncated": [False, True], "terminated": [False, False]}
    assert close(renorm(judged([0.5], 0.0, process=[0.5, 0.25], **cut)), [-0.5, -0.75])
    assert close(renorm(judged([0.5], 0.0, **cut)), [-0.5, -0.5])
