"""Self-imitation:

1. Fresh rows keep their advantage.
2. Good episodes are stored and come back once the buffer overflows, compared with the median of the groups' means.
3. Old ones are dropped.
4. "decay" and `scale: std` have their own numbers.
5. A coefficient of 0 is the base method.
6. Replayed tokens are clipped around the log-probabilities of the policy that sampled them.
7. A run resumes.
8. Episodes without log-probabilities and bad options are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from palaestra.data import Batch, StepTable, Trajectory
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import dr_grpo, grpo
from palaestra.replay import is_replayed
from palaestra.systems.spear.imitation_schedule import imitation_schedule
from palaestra.systems.spear.self_imitation import SelfImitation
from tests.parts.episodes import NETWORK, assert_resumes, run
from tests.replay.episodes import at, episode, seen
from tests.training.conftest import curve


def iterate(part: SelfImitation, played: list[Trajectory], step: int) -> tuple[list[Trajectory], torch.Tensor]:
    """One iteration: the episodes that the update learns from, and their advantages."""
    chosen = part.choose(played, at(step))
    table, sight = StepTable.from_trajectories(chosen), seen(chosen, step)
    advantage = part(table, dr_grpo(table), sight)
    part.update(Batch.of((), table), sight)
    return chosen, advantage


def group(step: int, *outcomes: float) -> list[Trajectory]:
    return [episode(won, group=f"{step:03d}", sample=i, task=step) for i, won in enumerate(outcomes)]


def test_fresh_rows_stay() -> None:  # rule 1
    table = StepTable.from_trajectories(group(0, 1, 0, 0.5))
    for base in (grpo(table), dr_grpo(table)):
        assert SelfImitation()(table, base, at(0)) is base


def test_good_episodes_come_back() -> None:  # rule 2
    part = SelfImitation(capacity=2, overflow=1.5)
    played = [group(0, 0.5, 0), group(1, 1, 0), group(2, 0, 0.25), group(3, 0.75, 0.75), group(4, 1, 0)]
    for step, episodes in enumerate(played):
        chosen, _ = iterate(part, episodes, step)
        assert len(chosen) == 2, "three stored are not more than 1.5 times 2"
    chosen, advantage = iterate(part, group(5, 1, 0), 5)
    # group means .25, .5, .125, .75, .5: median .5; stored returns .5, 1, .25 and 1, of which .25 is below the median
    copies = [t for t in chosen if is_replayed(t)]
    assert sorted(t.outcome for t in copies if t.outcome is not None) == [0.5, 1.0, 1.0]
    table = StepTable.from_trajectories(chosen)
    found = dict(zip([table.labels("trajectory")[c] for c in table["trajectory"]], advantage.tolist(), strict=True))
    assert [found[t.id] for t in copies] == [0.0, 0.5, 0.5]
    assert [found["005/0"], found["005/1"]] == [0.5, -0.5]
    assert not [t for t in iterate(part, group(6, 1, 0), 6)[0] if is_replayed(t)], "the buffer is empty again"


def test_median_of_the_groups() -> None:  # rule 2
    part = SelfImitation()
    for step, mean in enumerate([0.25, 0.5, 0.125, 0.75, 0.5]):
        iterate(part, group(step, mean, mean), step)
    assert part.median == 0.5
    assert [part.recalibrated(reward, 1.0) for reward in (1.0, 0.5, 0.25)] == [0.5, 0, -0.25]
    assert SelfImitation().median == 0.0


def test_old_episodes_are_forgotten() -> None:  # rule 3
    part = SelfImitation(capacity=1, overflow=1.0, tolerance=2)
    iterate(part, group(0, 1, 0), 0)
    chosen, _ = iterate(part, group(3, 1, 0), 3)
    assert not any(map(is_replayed, chosen))
    late = SelfImitation(capacity=1, overflow=1.0, tolerance=3)
    for step in (0, 1):
        iterate(late, group(step, 1, 0), step)
    assert sum(map(is_replayed, iterate(late, group(3, 1, 0), 3)[0])) == 2


def test_alternatives() -> None:  # rule 4
    assert SelfImitation(recalibrate="decay", decay=0.5).recalibrated(9.0, 0.5) == 0.25
    part = SelfImitation(scale="std")
    for step in range(3):
        iterate(part, group(step, 1, 0), step)  # deviation of (1, 0) is 0.7071
    assert part.recalibrated(1.0, 0.0) == pytest.approx(0.5 / 0.70711, abs=1e-4)


def test_schedule() -> None:  # rule 5
    table = StepTable.from_trajectories(group(0, 1, 0))
    iteration = at(100)
    assert imitation_schedule(table, iteration).tolist() == [1.0] * 4
    assert iteration.metrics == {"imitation/weight": pytest.approx(0.5)}
    second = table.replace(anchored=torch.tensor([1.0, 1, 0, 0]))
    assert imitation_schedule(second, at(5), coefficient=0).tolist() == [0, 0, 1, 1]


RECIPE: dict[str, Any] = {
    "advantage": ["dr_grpo", {"self_imitation": {"capacity": 1, "overflow": 1.0}}],
    "weights": [{"imitation_schedule": {"coefficient": 1.0, "horizon": 2}}],
    "loss": {"ppo_clip_cov": {}},
    "aggregate": {"how": "sequence-sum-norm", "constant": 48},
    "warm_start": {"episodes": 16, "epochs": 2},
}


def weights(folder: Path) -> bytes:
    return (sorted((folder / "checkpoints").iterdir())[-1] / "main.safetensors").read_bytes()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_coefficient_of_0_is_the_base(tmp_path: Path, minibatches: int) -> None:  # rule 5
    several = {"training": {"minibatches": minibatches, "iterations": 8}}
    plain = {**RECIPE, "advantage": "dr_grpo", "weights": [], "loss": {"ppo_clip": {"high": 0.28}}, **several}
    none = {"weights": [{"imitation_schedule": {"coefficient": 0.0}}], "loss": {"ppo_clip_cov": {"share": 0.0}}}
    silent = {"reward": ["environment", {"intrinsic_tool": {"schedule": "none"}}]}
    base = run(tmp_path / "base", [NETWORK, plain])
    neutral = run(tmp_path / "neutral", [NETWORK, {**RECIPE, **none, **silent, **several}])
    assert sum(line["imitation/replayed"] for line in curve(neutral)) > 0
    # The covariance needs the whole mini-batch, so samples without signal are evaluated too, which rounds differently.
    for name, expected in load(weights(base)).items():
        torch.testing.assert_close(load(weights(neutral))[name], expected, rtol=1e-5, atol=1e-6)
    losses = [[line["policy/loss"] for line in curve(folder) if "policy/loss" in line] for folder in (base, neutral)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    full = run(tmp_path / "full", [NETWORK, {**RECIPE, **several}])
    assert weights(full) != weights(base)


def test_replayed_tokens_are_clipped_around_their_sampler(tmp_path: Path) -> None:  # rule 6
    rushed = {"optimizer": {"adamw": {"lr": 0.05}}, "training": {"iterations": 8}}
    loss = {"loss": {"ppo_clip_cov": {"share": 0.0, "low": 0.2, "high": 0.2}}}
    lines = curve(run(tmp_path / "a", [NETWORK, RECIPE, loss, rushed]))
    moved = [line for line in lines if "policy/kl" in line]
    # With one update per iteration, fresh tokens have a ratio of 1, so any other ratio is of a replayed token.
    assert any(line["policy/kl"] > 1e-6 for line in moved if line["imitation/replayed"])
    assert all(line["policy/kl"] < 1e-6 for line in moved if not line["imitation/replayed"])


def test_runs_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 7
    assert_resumes([NETWORK, RECIPE], tmp_path, monkeypatch, "main.safetensors")  # the buffer file holds wall times


def test_what_is_refused() -> None:  # rule 8
    with pytest.raises(InvalidData, match="no log-probabilities of the policy that sampled it"):
        iterate(SelfImitation(), [episode(1.0, logprobs=False), episode(0.0, sample=1)], 0)
    for faulty in ({"tolerance": -1}, {"overflow": 0.5}, {"decay": 0.0}, {"capacity": 0}):
        with pytest.raises(RecipeError, match=next(iter(faulty))):
            SelfImitation(**faulty)
    with pytest.raises(RecipeError, match="horizon"):
        imitation_schedule(StepTable.from_trajectories(group(0, 1, 0)), at(0), horizon=-5)
