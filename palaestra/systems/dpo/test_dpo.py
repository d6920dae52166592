"""DPO:

1. The gradient is that of the formula.
2. A policy equal to the reference has the loss log 2, and so has every policy in the limit of beta 0.
3. Loss and gradient are those of TRL.
4. An answer without a pair, or without its other answer, has no gradient; a pair with exchanged labels has the other
   sign.
5. The contract of losses on whole pairs.
6. Bad pairs and recipes are refused.
7. From a file of pairs the policy learns which answers are preferred, and a resumed run is the same byte for byte.
8. Pairs made from an environment are right, and the committed pairs contain no evaluation task.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.envs.probes.sums import Sums
from palaestra.envs.probes.sums import read as read_number
from palaestra.errors import ContractError, InvalidData, MissingColumn, RecipeError
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.systems.dpo import dpo
from palaestra.systems.dpo.data import brief, pairs
from palaestra.testing import check_loss
from palaestra.training.start import train
from tests.extras import imported
from tests.messages import told
from tests.parts.batches import batch, gradient
from tests.training.conftest import final_weights, stopped_before

HERE = Path(__file__).parent
SMALL = [
    "warm_start.episodes=96",
    "warm_start.epochs=6",
    "policies.main.policy.language.hidden=32",
    "policies.main.policy.language.heads=2",
    "evaluation.tasks=8",
    "evaluation.every=null",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"flips": 0.2},
    {"flips": 0.2, "robust": True},
    {"normalize": True, "beta": 2.0},
    {"reference_free": True, "normalize": True, "margin": 1.0},
]


def pair(**changes: Any) -> TokenBatch:
    columns: dict[str, Any] = {"logprob": [-1, -1.5, -2.5], "logprob_reference": [-1.2, -1.6, -2], "outcome": [1, 1, 0]}
    return batch([0, 0, 1], [0, 0, 0], **{**columns, "pair": [1, 1, 1], **changes})


def many(seed: int = 0) -> TokenBatch:
    """Four pairs with answers of one to three tokens, some of them masked."""
    dice = torch.Generator().manual_seed(seed)
    trajectory = torch.repeat_interleave(torch.arange(8), torch.tensor([1, 3, 2, 2, 3, 1, 2, 3]))

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(len(trajectory), generator=dice, dtype=torch.float64)

    weight = torch.ones(len(trajectory)).index_fill(0, torch.tensor([2, 9]), 0.0)
    logprob = -1 - normal().abs()
    return batch(
        trajectory.tolist(),
        (trajectory // 2).tolist(),
        logprob=logprob,
        logprob_reference=logprob + normal(0.5),
        outcome=1 - trajectory % 2,
        weight=weight,
        pair=torch.ones(len(trajectory)),
    )


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_gradient_of_a_pair(beta: float) -> None:  # rule 1
    slope = beta / (1 + math.exp(beta * 0.8)) * 3  # each of the three tokens carries the loss
    assert gradient(dpo, pair(), beta=beta).tolist() == pytest.approx([-slope, -slope, slope])
    metrics = dpo(pair(), beta=beta)[1]
    assert metrics["dpo/accuracy"].tolist() == [1.0] * 3 and metrics["dpo/margin"][0] == pytest.approx(0.8 * beta)
    assert [float(metrics[f"dpo/{side}"][2]) for side in ("chosen", "rejected")] == pytest.approx(
        [0.3 * beta, -0.5 * beta]
    )


def test_log_two() -> None:  # rule 2
    equal = pair(logprob_reference=[-1, -1.5, -2.5])
    for options in OPTIONS[:4]:
        loss, metrics = dpo(equal, **options)
        assert loss.tolist() == pytest.approx([math.log(2)] * 3) and metrics["dpo/accuracy"].tolist() == [0.5] * 3
    small = 1e-6
    assert dpo(pair(), beta=small)[0].tolist() == pytest.approx([math.log(2)] * 3, abs=1e-6)
    assert (gradient(dpo, pair(), beta=small) / small).tolist() == pytest.approx([-1.5, -1.5, 1.5], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("sigmoid", {"beta": 0.3}), ("robust", {"flips": 0.2, "robust": True}), ("sigmoid_norm", {"normalize": True})],
)
def test_as_in_trl(kind: str, options: dict[str, Any]) -> None:  # rule 3
    trainer = imported("trl").DPOTrainer
    given = many()
    answers = 8
    chosen_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # the order of a batch in TRL

    def padded(values: Tensor) -> Tensor:
        """(answers, places) behind one place of the prompt, 0 where there is no token."""
        rows = [torch.where(given["weight"] > 0, values, 0.0)[given.trajectory == i] for i in chosen_first.tolist()]
        return torch.nn.utils.rnn.pad_sequence(
            [torch.cat([values.new_zeros(1), row]) for row in rows], batch_first=True
        )

    def sums(values: Tensor) -> Tensor:
        return padded(values).sum(1)

    leaf = given["logprob"].clone().requires_grad_()
    logprobs, mask = padded(leaf), padded(torch.ones_like(leaf))
    reference = sums(given["logprob_reference"]).chunk(2)
    outputs = SimpleNamespace(
        log_probs=logprobs[:, 1:], **{name: mask[:, 1:].bool() for name in ("entropy", "mean_logits", "is_top1")}
    )
    same = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    itself = SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=same,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[kind],
        loss_weights=[1.0],
        beta=options.get("beta", 0.1),
        label_smoothing=options.get("flips", 0.0),
        use_weighting=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
    )
    inputs = {"input_ids": mask.long(), "completion_mask": mask.long(), "attention_mask": mask.long()}
    inputs |= {"ref_chosen_logps": reference[0], "ref_rejected_logps": reference[1]}
    theirs = trainer._compute_loss(itself, lambda **_: outputs, inputs, return_outputs=False)
    (their_gradient,) = torch.autograd.grad(theirs, leaf)

    ours_leaf = given["logprob"].clone().requires_grad_()
    loss = dpo(given.replace(logprob=ours_leaf), **options)[0]
    first = torch.stack([loss[given.trajectory == i][0] for i in range(answers)])
    ours = first.mean()  # each pair is in it twice
    (our_gradient,) = torch.autograd.grad(ours, ours_leaf)
    torch.testing.assert_close(ours.detach(), theirs.detach())
    torch.testing.assert_close(our_gradient, their_gradient)


def test_no_pair() -> None:  # rule 4
    for alone in (pair(pair=[0, 0, 0]), pair(weight=[1, 1, 0]), pair(outcome=[1, 1, 1])):
        assert not dpo(alone)[0].any() and not gradient(dpo, alone).any()
    turned = gradient(dpo, pair(outcome=[0, 0, 1]))
    assert (turned * gradient(dpo, pair()) < 0).all()
    twice = batch(
        [0, 0, 1, 2, 2, 3],
        [0, 0, 0, 1, 1, 1],
        pair=[1] * 6,
        **{  # two records of one iteration
            name: pair()[name].repeat(2) for name in ("logprob", "logprob_reference", "outcome")
        },
    )
    assert dpo(twice)[0].tolist() == [*dpo(pair())[0].tolist()] * 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_contract(options: dict[str, Any]) -> None:  # rule 5
    check_loss(dpo, many(3), how="sequence-mean", **options)


def test_refused() -> None:  # rule 6
    with pytest.raises(InvalidData, match="an outcome other than 1"):
        dpo(pair(outcome=[1, 1, 0.5]))
    with pytest.raises(MissingColumn, match="`logprob_reference`"):
        dpo(pair().replace(logprob_reference=None))
    assert dpo(pair().replace(logprob_reference=None), reference_free=True)
    with pytest.raises(MissingColumn, match="ids `pair`"):
        dpo(pair().replace(pair=None))
    with told(ContractError, "part of a pair"):
        dpo(pair(scope="trajectory"))
    for name, value in (("beta", 0.0), ("flips", 0.5), ("margin", -1.0)):
        with pytest.raises(RecipeError, match=f"cannot take `{name}"):
            dpo(pair(), **{name: value})
    with pytest.raises(RecipeError, match="reads the column `pair`"):
        load(["dpo"], ["experience=rollout"])
    with pytest.raises(RecipeError, match="`reference` is not set"):
        load(["dpo"], ["reference=null"])
    assert load(["dpo"], ["reference=null", "loss.dpo.reference_free=true"])


def test_learning_and_resuming(tmp_path: Path) -> None:  # rule 7
    few = tmp_path / "few.jsonl"
    few.write_text("".join((HERE / "pairs.jsonl").read_text().splitlines(keepends=True)[:8]))

    def run(name: str, **how: Any) -> Path:
        small = [*SMALL, "optimizer.adamw.lr=1e-3", "training.iterations=20", "training.checkpoint_every=8"]
        recipe = load(["dpo"], [*small, f"experience.dataset.path={few}", f"run={tmp_path / name}"])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **how)
        return tmp_path / name

    whole = run("whole")
    lines = MetricsLog(whole).metrics.read()
    assert lines[0]["dpo/accuracy"] == 0.5 and lines[0]["policy/loss"] == pytest.approx(math.log(2))
    assert lines[-1]["dpo/accuracy"] == 1.0 and lines[-1]["policy/loss"] < lines[10]["policy/loss"] < math.log(2)
    assert lines[-1]["environment_steps"] == 0 and lines[-1]["updates"] == 20
    with stopped_before(13):
        run("parts")
    assert final_weights(run("parts", resume=True)) == final_weights(whole)


def right(prompt: str, answer: str) -> bool:
    one, other = prompt.split("+")
    return read_number(answer) == int(read_number(one) or 0) + int(read_number(other) or 0)


def test_pairs_of_an_environment() -> None:  # rule 8
    easy = ["environment.sums.digits=1", "environment.sums.second=4", "environment.sums.slips=0.5"]
    cloned = ["warm_start.episodes=192", "warm_start.epochs=40", "warm_start.batch_tokens=128"]
    settings = load(["dpo"], [*SMALL, *easy, *cloned]).settings
    found = [brief(record) for record in pairs(settings, tasks=24, samples=4)]
    assert found and all(right(each["prompt"], each["chosen"]) for each in found)
    assert not any(right(each["prompt"], each["rejected"]) for each in found)


def test_committed_pairs() -> None:  # rule 8
    found = [json.loads(line) for line in (HERE / "pairs.jsonl").read_text().splitlines()]
    assert len(found) > 1000
    for each in found:
        assert right(each["prompt"], each["chosen"]) and not right(each["prompt"], each["rejected"])
    settings = load(["dpo"]).settings
    world = Sums(**settings.environment.options)
    panel = evaluation_tasks(world, settings.evaluation.tasks)
    held_out = {task.content for task in panel}
    assert len(held_out) == len(panel) and not held_out & {each["content"] for each in found}
    shown = {world.reset(task).observations["solver"].text for task in panel}
    assert not shown & {each["prompt"] for each in found}
