"""Strategies that change temperatures, `adaptive_temperature` and `cooling`:

1. Adaptive temperature samples the first iteration at T₀. It samples the next with the entropies of the one before: at
   a higher temperature where there is a choice, at a lower one where there is none.
2. Log-probabilities are those of the temperature that sampled; entropies are those at T₀.
3. Strength 0 samples the same tokens and numbers bit for bit.
4. A row's sample does not depend on the other rows.
5. The state is saved and continues exactly.
6. Cooling goes evenly from T₀ to its end, and with an end of T₀ it changes nothing.
7. Options out of range are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Play, Step, Task, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.engines.sampling import log_distribution, token_temperatures
from palaestra.errors import RecipeError
from palaestra.policies.drawing import draw
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.hapo.adaptive_temperature import AdaptiveTemperature
from palaestra.systems.hapo.entropy_signal import EntropyScale, SignalTemperature
from palaestra.systems.kimi_rl.cooling import Cooling

SCALE = EntropyScale(pivot=-0.5, deviation=1.0, high=1.0, low=2.0)
RULE, NONE = SignalTemperature(scale=SCALE, strength=0.5), SignalTemperature(scale=SCALE, strength=0.0)
PLAYS = [Play(task=Task(env="test", seed=i), group="g", sample=i, seed=i) for i in range(2)]


def logits(rows: int = 6) -> torch.Tensor:
    spread = torch.logspace(-1, 1, rows)[:, None]
    return spread * torch.randn(rows, 5, generator=torch.Generator().manual_seed(1))


class Runner:
    """Plays by giving each episode these entropies, and records the sampling settings that it was called with."""

    def __init__(self, *entropies: float) -> None:
        self.entropies, self.asked = entropies, list[Sampling]()

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        self.asked.append(rollout.sampling)
        return [self.play(play) for play in plays]

    def play(self, play: Play) -> Trajectory:
        entropy = np.array(self.entropies, np.float32)
        action = Action(value=0, tokens=np.zeros(len(entropy), np.int32), entropy=entropy)
        step = Step(agent="x", turn=0, action=action, observation=Observation(text=""))
        silent = Step(agent="y", turn=1, action=Action(value=0), observation=Observation(text=""))
        return Trajectory(task=play.task, group=play.group, sample=play.sample, steps=[step, silent])


def rollout_of(runner: Any, step: int, temperature: float = 1.0) -> RolloutContext:
    return RolloutContext(
        more=lambda groups: [],
        settings=RolloutSettings(),
        sampling=Sampling(temperature=temperature),
        step=step,
        seed=0,
        inner=runner,
    )


def run(strategy: Any, runner: Any, step: int, temperature: float = 1.0) -> dict[str, float]:
    rollout = rollout_of(runner, step, temperature)
    assert len(asyncio.run(strategy(PLAYS, rollout))) == len(PLAYS)
    return rollout.metrics


# ---- the strategy -----------------------------------------------------------------------------------------
def test_the_scale_is_of_the_iteration_before() -> None:  # rule 1
    strategy, runner = AdaptiveTemperature(strength=0.05, quantile=0.5), Runner(0.01, 0.1, 0.5, 1.0, 2.0)
    first = run(strategy, runner, 0)
    assert runner.asked[0].entropy_temperature is None and runner.asked[0].entropy
    assert first == {"sampling/entropy": pytest.approx(0.722), "sampling/temperature": 1.0}
    second = run(strategy, runner, 1)
    rule = runner.asked[1].entropy_temperature
    assert rule is not None
    expected = [0.95, 0.9794, 1, 1.025, 1.05]
    torch.testing.assert_close(
        rule.factor(torch.tensor([0.01, 0.1, 0.5, 1.0, 2.0])).float(),
        torch.tensor(expected),
        atol=6e-5,
        rtol=0,
    )
    assert second["sampling/temperature"] == pytest.approx(np.mean(expected), abs=1e-4)
    run(strategy, runner, 1)  # the same iteration plays further groups
    assert runner.asked[2].entropy_temperature == rule
    run(strategy, Runner(), 2)  # without actions the scale stays
    run(strategy, runner, 3)
    assert runner.asked[3].entropy_temperature == rule


def test_released_sign() -> None:  # rule 1
    strategy, runner = AdaptiveTemperature(quantile=0.5, released_sign=True), Runner(0.01, 1.0, 2.0)
    run(strategy, runner, 0)
    run(strategy, runner, 1)
    rule = runner.asked[1].entropy_temperature
    assert rule is not None and bool((rule.factor(torch.tensor([0.01, 1.0, 2.0])) >= 1).all())


def test_state() -> None:  # rule 5
    strategy, runner = AdaptiveTemperature(), Runner(0.1, 0.4, 0.9)
    run(strategy, runner, 0)
    run(strategy, Runner(0.3, 0.8), 1)
    other, again = AdaptiveTemperature(), Runner(0.2)
    other.load_state_dict(strategy.state_dict())
    run(other, again, 2)
    run(strategy, runner, 2)
    assert again.asked[0].entropy_temperature == runner.asked[-1].entropy_temperature is not None
    fresh = AdaptiveTemperature()
    fresh.load_state_dict(AdaptiveTemperature().state_dict())
    assert fresh.scale is None


# ---- drawing ----------------------------------------------------------------------------------------------
def entropies(x: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(torch.softmax(x, -1)).sum(-1)


def test_tokens_are_hotter_and_cooler() -> None:  # rules 1, 2
    x = logits()
    temperature, before = token_temperatures(x, temperature=[0.7] * 6, entropy_temperature=[RULE] * 5 + [None])
    expected = 0.7 * RULE.factor(entropies(x / 0.7))
    assert temperature == pytest.approx([*expected[:5].tolist(), 0.7])
    assert before == [*(pytest.approx(e, abs=1e-6) for e in entropies(x / 0.7)[:5].tolist()), None]
    assert min(temperature) < 0.7 < max(temperature)


def test_actions_are_hotter_and_cooler() -> None:  # rules 1, 2
    x, seeds = logits(), range(6)
    choice = draw(x, seeds, entropy_temperature=[RULE] * 6, entropy=True)
    factor = RULE.factor(entropies(x)).float()
    sampled = torch.log_softmax(x / factor[:, None], -1)
    torch.testing.assert_close(torch.from_numpy(choice.logprob), sampled[range(6), choice.index.tolist()])
    assert choice.entropy is not None
    torch.testing.assert_close(torch.from_numpy(choice.entropy), entropies(x))
    assert draw(x, seeds, entropy_temperature=[RULE] * 6).entropy is None


def test_legal_actions_decide() -> None:  # rule 1
    legal = np.zeros((6, 5), bool)
    legal[:, 0] = True
    choice = draw(logits(), range(6), entropy_temperature=[RULE] * 6, legal=legal, entropy=True)
    assert choice.index.tolist() == [0] * 6 and choice.logprob.tolist() == [0.0] * 6


def test_no_strength() -> None:  # rule 3
    x, seeds = logits(), range(6)
    one, other = draw(x, seeds, temperature=0.7, entropy_temperature=[NONE] * 6), draw(x, seeds, temperature=0.7)
    assert np.array_equal(one.index, other.index) and np.array_equal(one.logprob, other.logprob)
    assert token_temperatures(x, temperature=[0.7] * 6, entropy_temperature=[NONE] * 6)[0] == [0.7] * 6


def test_rows_are_alone() -> None:  # rule 4
    x = logits()
    together = token_temperatures(x, temperature=[1.0] * 6, entropy_temperature=[RULE, None, NONE, RULE, None, RULE])
    for row, rule in enumerate([RULE, None, NONE, RULE, None, RULE]):
        alone = token_temperatures(x[row : row + 1], temperature=[1.0], entropy_temperature=[rule])
        assert (together[0][row], together[1][row]) == (alone[0][0], alone[1][0])


def test_greedy_stays_greedy() -> None:  # rule 2
    temperature, _ = token_temperatures(logits(), temperature=[0.0] * 6, entropy_temperature=[RULE] * 6)
    assert temperature == [0.0] * 6
    found = log_distribution(logits(), temperature=temperature, top_k=[0] * 6, top_p=[1.0] * 6)
    assert bool((found.max(-1).values == 0).all())
    assert draw(logits(), range(6), temperature=0.0, entropy_temperature=[RULE] * 6).logprob.tolist() == [0.0] * 6


# ---- cooling ----------------------------------------------------------------------------------------------
def test_cooling() -> None:  # rule 6
    strategy, runner = Cooling(end=0.6, iterations=4), Runner(0.5)
    asked = [run(strategy, runner, step, temperature=1.0)["sampling/temperature"] for step in (0, 1, 2, 4, 9)]
    assert asked == pytest.approx([1.0, 0.9, 0.8, 0.6, 0.6])
    assert [sampling.temperature for sampling in runner.asked] == asked
    same = Runner(0.5)
    for step in range(4):
        run(Cooling(end=0.7, iterations=3), same, step, temperature=0.7)
    assert same.asked == [Sampling(temperature=0.7)] * 4


@pytest.mark.parametrize(
    ("part", "options", "key"),
    [
        (AdaptiveTemperature, {"strength": 1.0}, "strength"),
        (AdaptiveTemperature, {"quantile": 1.5}, "quantile"),
        (Cooling, {"end": 0.0, "iterations": 5}, "end"),
        (Cooling, {"end": 0.5, "iterations": 0}, "iterations"),
        (Cooling, {"end": 0.5}, "iterations"),
    ],
)
def test_options_out_of_range(part: Any, options: dict[str, Any], key: str) -> None:  # rule 7
    with pytest.raises((RecipeError, TypeError), match=key):
        part(**options)
