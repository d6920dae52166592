"""Which tokens count in an update, whatever else a recipe holds.

1. Mini-batches and denominators are those of all samples that count: a regularizer with coefficient 0 changes nothing.
2. Samples that can move nothing are skipped in the forward only: a loss that wants every token makes the same weights,
   also where a mini-batch holds no advantage at all.
3. What is skipped is not evaluated, and metrics are means over what is.
4. Whole trajectories and groups stay together, skipped or not.
5. A loss that learns without advantages learns from samples without any.
6. Tokens that `truncated_importance` rejects count in the denominators of the loss and of the metrics: they add nothing
   to the loss and to what it reports, and their entropy and mismatch are in the means.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from palaestra.data import StepTable, TokenBatch
from palaestra.parts.losses import gspo, ppo_clip
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.store.metrics import MetricsLog
from palaestra.systems.spear.ppo_clip_cov import ppo_clip_cov
from palaestra.training.start import train
from palaestra.training.updates import Updater

HERE = str(Path(__file__).resolve())
SETUP: dict[str, Any] = {
    "seed": 5,
    "environment": {"lengths": {"short": 2, "long": 5}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"runner": "vector", "tasks": 6, "group": 4},
    "advantage": [f"{HERE}:half"],
    "optimizer": {"adamw": {"lr": 1e-2}},
    "training": {"iterations": 1, "epochs": 1, "minibatches": 1, "threads": 1},
    "evaluation": {"tasks": 2},
}
NOTHING: dict[str, Any] = {"regularizers": [{"entropy": {"coefficient": 0.0}}]}
Log = list[dict[str, float]]
Run = Callable[..., tuple[dict[str, Tensor], Log]]


def half(table: StepTable) -> Tensor:
    """Advantages of every other group; 0 in the rest."""
    drawn = torch.randn(len(table), generator=torch.Generator().manual_seed(1))
    return torch.where(table["group"] % 2 == 0, 0.0, drawn)


def first(table: StepTable) -> Tensor:
    """Advantages of the first group alone, so that most mini-batches have none."""
    return (table["group"] == 0).float() * (1 + table["turn"])


def drawn(table: StepTable) -> Tensor:
    """An advantage other than 0 of every row."""
    return 0.1 + torch.rand(len(table), generator=torch.Generator().manual_seed(1))


def everywhere(table: StepTable) -> Tensor:
    """Advantages of every row."""
    return torch.ones(len(table))


@register("loss", "every_clip", every_token=True)
def every_clip(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, of a loss that says that it reads every token."""
    return ppo_clip(batch)


@register("loss", "every_gspo", scope="trajectory", every_token=True)
def every_gspo(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The same of GSPO."""
    return gspo(batch, low=0.2, high=0.2)


@register("loss", "every_cov", scope="minibatch", every_token=True)
def every_cov(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """The same of a loss that looks at the whole mini-batch."""
    return ppo_clip_cov(batch, share=0.3, lower=0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small setup with further layers and overrides: the last weights, and the log."""

    def trained(*arguments: Any) -> tuple[dict[str, Tensor], Log]:
        layers = [one for one in arguments if isinstance(one, dict)]
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        overrides = [one for one in arguments if isinstance(one, str)]
        recipe = load([SETUP, *layers], [f"run={folder}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        newest = sorted((folder / "checkpoints").iterdir())[-1]
        return load_file(newest / "main.safetensors"), MetricsLog(folder).metrics.read()

    return trained


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("minibatches", [1, 3])
@pytest.mark.parametrize("how", ["token-mean", "sequence-mean", "group-mean", "step-mean"])
def test_1_a_regularizer_of_nothing_changes_nothing(run: Run, how: str, minibatches: int) -> None:
    several = (f"training.minibatches={minibatches}", f"aggregate.how={how}")
    (plain, logs), (neutral, others) = run(*several), run(*several, NOTHING)
    assert_same(plain, neutral)
    for name in ("policy/loss", "policy/grad_norm", "policy/kl"):
        assert logs[0][name] == pytest.approx(others[0][name], abs=1e-6), name


def test_1_a_regularizer_that_pulls_is_no_other_denominator(run: Run) -> None:
    least = {"regularizers": [{"entropy": {"coefficient": 1e-9}}]}
    norms = [run(*layers)[1][0]["policy/grad_norm"] for layers in ((), (least,))]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.parametrize("advantage", ["half", "first"])
@pytest.mark.parametrize("minibatches", [1, 4])
def test_2_skipping_changes_no_weight(run: Run, advantage: str, minibatches: int) -> None:
    several = (f"training.minibatches={minibatches}", "training.epochs=2", "training.iterations=3")
    layer = {"advantage": [f"{HERE}:{advantage}"]}
    (plain, logs), (every, others) = run(*several, layer), run(*several, layer, {"loss": f"{HERE}:every_clip"})
    assert_same(plain, every)
    for name in ("policy/loss", "policy/grad_norm", "updates"):
        assert [line[name] for line in logs] == pytest.approx([line[name] for line in others], abs=1e-5), name


def test_2_a_loss_of_the_mini_batch_sees_all_of_it(run: Run) -> None:
    own = {"loss": {"ppo_clip_cov": {"share": 0.3, "lower": 0.0}}}
    several = ("training.minibatches=2", "training.epochs=2")
    (plain, logs), (every, _) = run(*several, own), run(*several, {"loss": f"{HERE}:every_cov"})
    assert logs[0]["policy/cov_clipped"] > 0
    assert_same(plain, every)


def test_3_what_is_skipped_is_not_evaluated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = NetworkPolicy.forward

    def forward(self: Any, samples: Any, which: Any, outputs: Any) -> Any:
        read.append(int(sum(samples.token_start[i + 1] - samples.token_start[i] for i in which)))
        return plain(self, samples, which, outputs)

    monkeypatch.setattr(NetworkPolicy, "forward", forward)
    (_, some), seen = run(), sum(read)
    read.clear()
    (_, every), whole = run({"loss": f"{HERE}:every_clip"}), sum(read)
    assert 0.2 * whole < seen < 0.8 * whole
    assert some[0]["policy/ratio"] == every[0]["policy/ratio"] == pytest.approx(1.0, rel=1e-5)
    entropies = [line[0]["policy/entropy"] for line in (some, every)]
    assert entropies[0] == pytest.approx(entropies[1], rel=0.2)  # a mean over fewer tokens, not a smaller sum


@pytest.mark.parametrize("minibatches", [1, 3])
def test_4_whole_units(run: Run, minibatches: int) -> None:
    several = (f"training.minibatches={minibatches}", "training.epochs=2")
    trajectory = {"loss": {"gspo": {"low": 0.2, "high": 0.2}}}
    weights = [run(*several, layer)[0] for layer in (trajectory, trajectory | NOTHING, {"loss": f"{HERE}:every_gspo"})]
    assert_same(weights[0], weights[1])
    assert_same(weights[0], weights[2])
    calls = {"loss": {"ppo_clip": {"ratio": "trajectory"}}}
    assert_same(run(*several, calls)[0], run(*several, calls | NOTHING)[0])


def test_5_losses_without_advantages(run: Run) -> None:
    cloning = {"loss": "behavior_cloning"}
    weights = [run({"advantage": [f"{HERE}:{name}"]}, cloning)[0] for name in ("half", "everywhere")]
    assert_same(*weights)


def test_6_rejected_tokens_count_everywhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, plain = [], Updater._token_batch

    def batch(self: Updater, table: Any) -> TokenBatch:
        batches.append(plain(self, table))
        return batches[-1]

    monkeypatch.setattr(Updater, "_token_batch", batch)
    noisy = ("training.actor_noise=40", "aggregate.how=token-mean")  # the head of a new actor is nearly 0
    every = {"advantage": [f"{HERE}:drawn"]}
    mask = {"weights": [{"truncated_importance": {"mode": "mask", "cap": 1.1}}]}
    (_, (whole,)), (_, (masked,)) = run(*noisy, every), run(*noisy, every, mask)
    of_all, rejecting = batches
    rejected = rejecting["weight"] == 0
    kept = float((~rejected).float().mean())
    assert 0.2 < kept < 0.8 and bool((rejecting["counts"] > 0).all())
    expected = -float((rejecting["advantage"] * rejecting["weight"]).sum()) / len(rejecting)
    assert masked["policy/loss"] == pytest.approx(expected, rel=1e-4)
    assert whole["policy/loss"] == pytest.approx(-float(of_all["advantage"].mean()), rel=1e-4)
    for name in ("policy/entropy", "mismatch/abs", "mismatch/kl", "policy/ratio", "policy/kl"):
        assert masked[name] == pytest.approx(whole[name], rel=1e-5), name
    assert masked["weights/effective"] == pytest.approx(kept, rel=1e-5)
    assert (whole["weights/effective"], masked["weights/max"]) == (1.0, 1.0)
