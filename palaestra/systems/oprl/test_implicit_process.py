"""The reward `implicit_process` and the preferences that it learns from:

1. It has the published numbers: step rewards, Q as sum and as mean, the loss of a pair.
2. While the second model is the policy, every step reward is 0 and the loss is log 2; Σ p_k = Q for any model.
3. One-to-one pairs use a trajectory at most once, best with worst; `all` takes every unequal pair of a group, and no
   pair crosses groups.
4. It learns to prefer the better episodes; its accuracy is measured before it learns; the gradient is that of the loss
   written out, whatever the token budget; the policy does not change.
5. `update` runs before or after scoring; `batch_norm` bounds the sums; without a pair no weight changes, and the
   metrics say so.
6. State is saved and restored; a stopped and resumed run is the same byte for byte, with vectors and with tokens.
7. Missing log-probabilities, beta ≤ 0, other tokenizers and sizes, and a call before `start` are refused.
8. Rows of policies without a second model have no step reward; rows of weight 0 are in no pair.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.algebra.pairs import preference_loss, preference_pairs
from palaestra.data import Batch, Key, RunSetup, StepTable
from palaestra.errors import CheckpointError, ContractError, InvalidData, MissingColumn, PalaestraError, RecipeError
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.systems.oprl.implicit_process import (
    ImplicitProcess,
    episode_quality,
    implicit_rewards,
    over_largest_sum,
    pairs_of,
    refuse_other_tokens,
)
from palaestra.training.setup import build_setup
from tests.parts.episodes import LANGUAGE, NETWORK, SETUP, assert_resumes, at, episode, policy, table_of

GOOD, BAD = [0, 1, 0], [2, 2, 1, 2]


def batch(acting: Any, groups: int = 2) -> list[Any]:
    """Groups of two wins with the same actions and two losses with other actions."""
    made = []
    for g in range(groups):
        ways = [(GOOD, 1.0), (GOOD, 1.0), (BAD, 0.0), (BAD, 0.0)]
        made += [episode(acting, i, way, won, group=f"g{g}") for i, (way, won) in enumerate(ways)]
    return made


def started(acting: Any, **options: Any) -> ImplicitProcess:
    part = ImplicitProcess(**{"lr": 1e-2, **options})
    part.start(SETUP, {"main": acting})
    return part


def published() -> StepTable:
    """Two trajectories of three and two steps, one token each."""
    return StepTable(group=["g"] * 5, trajectory=[1, 1, 1, 2, 2], agent=["x"] * 5, turn=[0, 1, 2, 0, 1],
                     reward=[0, 0, 1, 0, 0])  # fmt: skip


# ---- rules 1 to 3 -----------------------------------------------------------------------------------------
def test_1_published_numbers() -> None:
    table = published()
    rewards = implicit_rewards(torch.tensor([0.2, -0.1, 0.4, -0.3, 0.1]), table, beta=0.05)
    torch.testing.assert_close(rewards, torch.tensor([0.01, -0.005, 0.02, -0.015, 0.005]).double())
    for over, quality, loss in (("sum", [0.025, -0.01], 0.6758), ("mean", [0.025 / 3, -0.005], 0.6865)):
        found, steps = episode_quality(rewards, table, over=over)  # type: ignore[arg-type]
        torch.testing.assert_close(found, torch.tensor(quality).double())
        assert steps.tolist() == [3.0, 2.0]
        assert float(preference_loss(found[:1], found[1:])) == pytest.approx(loss, abs=5e-5)


def test_1_a_step_sums_its_tokens() -> None:
    table = published().replace(token_count=[2, 1, 1, 1, 2])
    rewards = implicit_rewards(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), table, beta=0.5)
    assert rewards.tolist() == [1.5, 2.0, 4.0, 8.0, 48.0]


def test_2_the_policy_itself_gives_nothing() -> None:
    acting = policy()
    played = batch(acting)
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    assert bool((part(table, seen)["process"] == 0).all())
    metrics = part.update(Batch.of((), table), seen)
    assert metrics["prm/loss"] == pytest.approx(math.log(2)) and metrics["prm/accuracy"] == 0.5
    assert metrics["prm/pairs"] == 4.0 and metrics["prm/skipped"] == 0.0


def test_2_step_rewards_sum_to_the_quality() -> None:
    acting = policy()
    played = batch(acting)
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    part.models["main"] = policy(seed=7)
    process = part(table, seen)["process"]
    log_ratio = part.models["main"].forward(seen.samples("main"), range(len(table)), ("logprob",))
    expected = 0.05 * (log_ratio["logprob"].detach() - table["logprob_behavior"])
    torch.testing.assert_close(process, expected, atol=1e-6, rtol=1e-5)
    quality, _ = episode_quality(process.double(), table)
    for code in range(len(played)):
        assert float(process[table["trajectory"] == code].sum()) == pytest.approx(float(quality[code]), abs=1e-6)


def test_3_one_to_one_pairs() -> None:
    score = torch.tensor([0.0, 3.0, 1.0, 2.0, 5.0, 5.0, 4.0, 9.0])
    sets = Key(torch.tensor([0, 0, 0, 0, 1, 1, 1, 2]), 3)
    pairs = preference_pairs(score, by=sets)
    assert list(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True)) == [(1, 0), (3, 2), (4, 6)]
    used = torch.cat(pairs).tolist()
    assert len(set(used)) == len(used)


def test_3_every_pair() -> None:
    score = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0])
    pairs = preference_pairs(score, by=Key(torch.tensor([0, 0, 0, 0, 1]), 2), every=True)
    found = set(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True))
    assert found == {(0, 1), (0, 3), (2, 1), (2, 3)}


# ---- rules 4 and 5 ----------------------------------------------------------------------------------------
def test_4_it_learns_what_was_better() -> None:
    acting = policy()
    before = {name: weight.clone() for name, weight in acting.module.state_dict().items()}
    played = batch(acting)
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    losses = [part.update(Batch.of((), table), seen) for _ in range(40)]
    assert losses[-1]["prm/loss"] < 0.6 < losses[0]["prm/loss"] and losses[-1]["prm/accuracy"] == 1.0
    process = part(table, seen)["process"]
    assert float(process[table["outcome"] == 1].mean()) > float(process[table["outcome"] == 0].mean())
    assert all(torch.equal(weight, before[name]) for name, weight in acting.module.state_dict().items())


@pytest.mark.parametrize("over", ["sum", "mean"])
@pytest.mark.parametrize("budget", [1, 64])
def test_4_the_gradient_is_that_of_the_loss(over: Any, budget: int) -> None:
    acting = policy()
    played = batch(acting)
    table, seen = table_of(played), at(acting, played, budget=budget)
    part = started(acting, over=over, lr=1e-12, pairs="all")
    part.models["main"].module.load_state_dict(policy(seed=7).module.state_dict())
    metrics = part.update(Batch.of((), table), seen)
    found = [weight.grad.clone() for weight in part.models["main"].module.parameters() if weight.grad is not None]
    fresh = policy(seed=7)
    logprob = fresh.forward(seen.samples("main"), range(len(table)), ("logprob",))["logprob"]
    rewards = implicit_rewards(logprob.double() - table["logprob_behavior"].double(), table, beta=0.05)
    quality, _ = episode_quality(rewards, table, over=over)
    pairs = pairs_of(table, torch.ones(len(played), dtype=torch.bool), every=True)
    loss = preference_loss(quality[pairs.better], quality[pairs.worse]).mean()
    loss.backward()
    expected = [weight.grad for weight in fresh.module.parameters() if weight.grad is not None]
    assert metrics["prm/loss"] == pytest.approx(float(loss.detach()), abs=1e-7)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-4)


def test_5_update_before_or_after() -> None:
    for update, zero in (("after", True), ("before", False)):
        acting = policy()
        played = batch(acting)
        table, seen = table_of(played), at(acting, played)
        part = started(acting, update=update)
        process = part(table, seen)["process"]
        assert bool((process == 0).all()) == zero
        assert part.update(Batch.of((), table), seen)["prm/loss"] == pytest.approx(
            math.log(2)
        )  # measured before the model learned from the batch
        assert torch.equal(part.models["main"].module.actor.weight, acting.module.actor.weight) is False


def test_5_normalized_by_the_largest_sum() -> None:
    table = published()
    process = torch.tensor([1.0, -2.0, -2.0, 0.5, 0.5])
    assert over_largest_sum(process, table).tolist() == [0.25, -0.5, -0.5, 0.125, 0.125]  # |−2 − 2| is the largest
    assert bool((over_largest_sum(torch.zeros(5), table) == 0).all())
    acting = policy()
    played = batch(acting)
    seen = at(acting, played)
    part = started(acting, normalize="batch_norm")
    part.models["main"].module.load_state_dict(policy(seed=7).module.state_dict())
    process = part(table_of(played), seen)["process"]
    assert 0 < float(process.abs().max()) <= 1


def test_5_no_pair() -> None:
    acting = policy()
    tied = [episode(acting, i, GOOD, 1.0) for i in range(3)]
    part = started(acting)
    before = [weight.clone() for weight in part.models["main"].module.parameters()]
    assert part.update(Batch.of((), table_of(tied)), at(acting, tied)) == {"prm/pairs": 0.0, "prm/skipped": 1.0}
    for one, other in zip(part.models["main"].module.parameters(), before, strict=True):
        assert torch.equal(one, other)


# ---- rule 6 -----------------------------------------------------------------------------------------------
def test_6_state_goes_round(tmp_path: Path) -> None:
    acting = policy()
    played = batch(acting)
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    part.update(Batch.of((), table), seen)
    torch.save(part.state_dict(), tmp_path / "state.pt")
    other = started(policy(seed=5))
    for name, module in part.modules().items():
        other.modules()[name].load_state_dict(module.state_dict())
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (part, other):
        one.update(Batch.of((), table), seen)
    assert torch.equal(part(table, seen)["process"], other(table, seen)["process"])


OPRL = {
    "reward": ["environment", {"implicit_process": {"lr": 1e-3, "updates": 2, "normalize": "batch_norm"}}],
    "advantage": {"oprl": {}},
}


@pytest.mark.parametrize("layers", [NETWORK, LANGUAGE], ids=["network", "language"])
def test_6_resume_is_bit_for_bit(layers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resumes([layers, OPRL], tmp_path, monkeypatch, "reward.1.state.pt", "reward.1.main_model.safetensors")


# ---- rules 7 and 8 ----------------------------------------------------------------------------------------
def test_7_missing_log_probabilities() -> None:
    acting = policy()
    played = batch(acting)
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    with pytest.raises(MissingColumn, match="no step has log-probabilities") as caught:
        part(table.replace(logprob_behavior=None), seen)
    assert "expert and scripted steps" in caught.value.remedy
    holes = table["logprob_behavior"].clone()
    holes[:2] = torch.nan
    with pytest.raises(InvalidData, match="2 of 28 tokens have no recorded log-probability"):
        part(table.replace(logprob_behavior=holes), seen)


@pytest.mark.parametrize("beta", [0.0, -0.05])
def test_7_beta(beta: float) -> None:
    with pytest.raises(RecipeError, match="cannot take `beta: "):
        ImplicitProcess(beta=beta)


def test_7_before_start() -> None:
    acting = policy()
    played = batch(acting)
    with pytest.raises(ContractError, match="before `start`"):
        ImplicitProcess()(table_of(played), at(acting, played))


def test_7_a_model_from_a_folder(tmp_path: Path) -> None:
    acting = policy()
    policy(seed=9).save(str(tmp_path / "same"))
    part = started(acting, model=str(tmp_path / "same"))
    played = batch(acting)
    assert bool((part(table_of(played), at(acting, played))["process"] != 0).any())
    larger = RunSetup(seed=0, vector_size=5, action_count=3)
    NetworkPolicy("main", larger, hidden=(8,)).save(str(tmp_path / "larger"))
    with pytest.raises(CheckpointError, match="vectors of 5 numbers"):
        started(acting, model=str(tmp_path / "larger"))


def speaking(texts: list[str]) -> LanguagePolicy:
    setup = RunSetup(seed=0, texts=lambda: texts)
    return LanguagePolicy("main", setup, hidden=16, layers=1, heads=2, context=64, vocabulary=300)


def test_7_another_tokenizer(tmp_path: Path) -> None:
    acting, stranger = speaking(["go north"] * 9), speaking(["take the key"] * 9)
    stranger.save(str(tmp_path))
    part = ImplicitProcess(model=str(tmp_path))
    with pytest.raises(CheckpointError, match="does not have the policy's tokens or actions: tokenizer") as caught:
        part.start(RunSetup(seed=0), {"main": acting})
    assert "leave `model` out" in caught.value.remedy
    with pytest.raises(CheckpointError, match="kind network, the policy has language"):
        refuse_other_tokens({"kind": "language"}, {"kind": "network"}, where="here")


def test_8_other_policies_have_no_step_reward() -> None:
    acting = policy()
    played = batch(acting)
    for step in played[0].steps:
        step.policy, step.action.logprobs = "frozen", None
    table, seen = table_of(played), at(acting, played)
    part = started(acting)
    process = part(table, seen)["process"]
    assert process.isnan().tolist() == [True] * 3 + [False] * 25
    assert part.update(Batch.of((), table), seen)["prm/pairs"] == 3.0  # the first win has no score, so no pair


def test_8_weights_that_explode() -> None:
    acting = policy()
    played = batch(acting)
    with pytest.raises(PalaestraError, match="changed the norm of its weights"):
        started(acting, lr=1e30).update(Batch.of((), table_of(played)), at(acting, played))


def test_8_padding_is_in_no_pair() -> None:
    acting = policy()
    played = batch(acting)
    weight = torch.ones(28)
    weight[:6] = 0  # both wins of the first group
    table, seen = table_of(played).replace(row_weight=weight), at(acting, played)
    assert started(acting).update(Batch.of((), table), seen)["prm/pairs"] == 2.0


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_7_a_model_from_a_folder_beside_low_rank_additions(kind: str, tmp_path: Path) -> None:
    whole: dict[str, Any] = {"base": {"policy": {"language": {"hidden": 16, "layers": 1}}}}
    world = {"environment": "sums", "training": {"threads": 1}}
    playing = {**world, "agents": {"*": {"policy": "base"}}, "policies": whole}
    build_setup(load([playing]).settings).policies["base"].save(str(tmp_path / "base"))
    loaded = {"model": str(tmp_path / "base")}
    policies: dict[str, Any] = {"main": {"policy": {"language": {**loaded, "lora": {"rank": 2}}}}}
    folder = loaded["model"]
    if kind == "adapter":
        policies = {"main": {"policy": {"adapter": {"of": "base", "rank": 2}}}}
        policies["base"] = {"policy": {"language": loaded}, "trainable": False}
    setup = build_setup(load([{**world, "policies": policies}]).settings)
    acting = setup.trained["main"]
    if kind == "adapter":
        acting.save(str(tmp_path / "saved"))
        folder = str(tmp_path / "saved" / "adapter")
    part = ImplicitProcess(model=folder)
    part.start(setup, setup.trained)
    second = part.models["main"]
    assert second is not acting and second.architecture() == acting.architecture()
    sizes = [sum(p.numel() for p in one.module.parameters()) for one in (second, acting)]
    assert sizes[0] == sizes[1]
