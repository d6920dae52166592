"""Sampled histories: (1) the number of observations has the distribution of the definition, is sampled per episode, and
empty responses are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palaestra.data import Observation
from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.hicon_agent.sampled_history import SampledHistory, history_probabilities
from tests.rollout.arena import AGENT


def test_lengths_of_histories() -> None:  # rule 1
    assert history_probabilities(2, 1.0).round(4).tolist() == [0.09, 0.2447, 0.6652]
    assert history_probabilities(2, 0.0).tolist() == [1 / 3] * 3 and history_probabilities(0, 1.0).tolist() == [1.0]
    drawn = [SampledHistory().drawn(("g", i, AGENT)) for i in range(600)]
    assert abs(drawn.count(2) / 600 - 0.6652) < 0.06 and {*drawn} == {0, 1, 2}
    assert drawn == [SampledHistory().drawn(("g", i, AGENT)) for i in range(600)]
    with pytest.raises(RecipeError, match="cannot take `most: -1"):
        SampledHistory(most=-1)


def test_responses_anchor_the_history(tiny: Any) -> None:  # rule 1
    talk = SampledHistory().start(tiny.renderer)
    talk.observe(Observation(text="x"))
    with pytest.raises(InvalidData, match="a response has no tokens"):
        talk.respond(np.zeros(0, np.int32))
