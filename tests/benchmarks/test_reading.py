"""`benchmarks/reading.py`.

1. Every segment of every agent is read as it was, and only response tokens are weighed.
2. A batch reads a segment as the model alone does, token for token, at any temperature.
3. If each episode was drawn as often as it is probable, the weighted success and the divergence are exact.
4. Where both models are the same, nothing differs; tasks are drawn whole for the interval.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Step, Task, Trajectory
from palaestra.models.causal_lm import make_causal_lm

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("reading")


def step(turn: int, prompt: list[int], tokens: list[int], *, agent: str = "a", segment: int = 0) -> Step:
    action = Action(
        text="x", tokens=np.array(tokens, np.int32), logprobs=np.array([-t / 8 for t in tokens], np.float32)
    )
    return Step(
        agent=agent,
        turn=turn,
        action=action,
        observation=Observation(text=""),
        prompt=np.array(prompt, np.int32),
        segment=segment,
    )


def episode(*steps: Step) -> Trajectory:
    return Trajectory(task=Task(env="e", seed=0), group="g", steps=list(steps))


def test_1_segments_are_read_as_they_were(reading: ModuleType) -> None:
    first = episode(
        step(0, [1, 2], [3]),
        step(1, [9], [10, 11], agent="b"),
        step(2, [4, 5], [6, 7]),
        step(3, [1, 8], [2], segment=1),
    )
    found = reading.reads([first, episode(step(0, [7], [8]))])
    assert [(one.episode, one.ids.tolist(), one.at.tolist()) for one in found] == [
        (0, [1, 2, 3, 4, 5, 6, 7], [2, 5, 6]),
        (0, [1, 8, 2], [2]),
        (0, [9, 10, 11], [1, 2]),
        (1, [7, 8], [1]),
    ]
    assert found[0].given.tolist() == [-3 / 8, -6 / 8, -7 / 8]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_2_a_batch_reads_as_the_model_alone(
    reading: ModuleType, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    model = make_causal_lm(vocabulary=16, hidden=16, heads=2).eval()
    monkeypatch.setattr(reading, "TOKENS", 16)  # segments of 2 and 8 ids together, and one of 20 alone
    segments = reading.reads(
        [episode(step(0, [1, 2], [3, 4]), step(1, [5, 6, 7], [8])), episode(step(0, [9], [1] * 19))]
    )
    segments += reading.reads([episode(step(0, [1], [2]))])
    assert reading._batches(segments) == [[2, 0], [1]]
    for segment, told in zip(segments, reading.read_by(model, segments, temperature), strict=True):
        for position, given, value in zip(segment.at, segment.given, told, strict=True):
            with torch.no_grad():
                logits = model(torch.from_numpy(segment.ids[None, :position])).logits[0, -1]
            alone = (logits / temperature).log_softmax(-1)[segment.ids[position]].item()
            assert value == pytest.approx(alone - given, abs=1e-5)


def test_3_exact_where_the_draw_is(reading: ModuleType) -> None:
    q, p, right = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5]), np.array([1.0, 1.0, 0.0])
    drawn = np.array([0, 0, 1, 2])  # as often as q says
    ratios = np.log(p / q)[drawn]
    found = reading.judged(ratios.reshape(2, 2), right[drawn].reshape(2, 2), ratios)
    assert found.success == pytest.approx((p * right).sum())
    assert found.difference.value == pytest.approx(((p - q) * right).sum())
    assert found.divergence.value == pytest.approx((q * np.log(q / p)).sum())
    assert found.effective == pytest.approx(4**2 / (0.5**2 * 2 + 1 + 2**2))
    assert found.apart == pytest.approx(3 / 4 * np.log(2)) and (found.episodes, found.tokens) == (4, 4)


def test_4_nothing_differs_for_the_same_model(reading: ModuleType) -> None:
    solved = np.tile([[1.0, 1.0], [0.0, 1.0]], (50, 1))
    found = reading.judged(np.zeros((100, 2)), solved, np.zeros(300))
    assert (found.success, found.effective, found.apart) == (0.75, 200, 0)
    assert str(found.difference) == str(found.divergence) == "0.000 [0.000, 0.000]"


def test_4_tasks_are_drawn_whole(reading: ModuleType) -> None:
    """Copies of an episode in its task tell nothing new: the interval stays as wide as with one sample."""
    random = np.random.default_rng(1)
    ratios, solved = random.normal(0, 0.3, (200, 1)), random.integers(0, 2, (200, 1)).astype(float)
    one, four = (reading.judged(np.tile(ratios, (1, k)), np.tile(solved, (1, k)), ratios) for k in (1, 4))
    assert one.difference.low < one.difference.value < one.difference.high
    assert (four.difference.low, four.difference.high) == pytest.approx((one.difference.low, one.difference.high))
