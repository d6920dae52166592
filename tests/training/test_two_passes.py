"""Two passes where a unit of the loss does not fit into one micro-batch: (1) gradient and metrics are those of one
pass, for every loss with a scope; (2) regularizers, critics and agents' gradient norms go the same way; (3) with
micro-batches of one sample, memory does not grow with the unit; (4) pieces that move nothing are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palaestra.data import Action, Batch, Iteration, Observation, RunSetup, Step, Task, Trajectory
from palaestra.policies.language import LanguagePolicy
from palaestra.registry.bound import BoundPart, bind, bind_all
from palaestra.training.loop import prepare
from palaestra.training.stages import Stages
from palaestra.training.updates import Updater

WHOLE, PIECES = 10**6, 1  # tokens of a micro-batch: everything in one, or each sample alone
LOSSES: dict[str, dict[str, Any]] = {
    "gspo": {"low": 0.2, "high": 0.2},
    "preference": {},
    "dual_branch": {},
    "squared_objective": {},
    "ppo_clip_cov": {"share": 0.3, "lower": 0.0},
    "ppo_clip": {"ratio": "trajectory"},
}
REGULARIZERS = [BoundPart(name="entropy"), BoundPart(name="kl"), BoundPart(name="value")]


@dataclass
class Recorder:
    """An optimizer that keeps the gradient and moves nothing."""

    module: torch.nn.Module
    lr: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    gradient: list[Tensor] = field(default_factory=list)

    def zero(self) -> None:
        self.module.zero_grad()

    def step(self) -> float:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.module.parameters()]
        self.gradient = grads
        return float(torch.sqrt(torch.stack([g.square().sum() for g in grads]).sum()))


def episodes(groups: int, samples: int, *, turns: int = 3, length: int = 4) -> list[Trajectory]:
    """Episodes of random tokens; each turn is a segment of its own, so that a trajectory is several samples.

    Samples 2k and 2k + 1 of a group are a pair: the same responses after other prompts.
    """
    dice = np.random.default_rng(0)
    played = []
    for place in range(groups * samples):
        group, sample = divmod(place, samples)
        same = np.random.default_rng((group, sample // 2))
        steps = [
            Step(
                agent="ab"[turn % 2],
                turn=turn,
                action=Action(tokens=same.integers(0, 256, 1 + (turn + sample // 2) % length).astype(np.int32)),
                observation=Observation(text=""),
                policy="main",
                prompt=dice.integers(0, 256, 5).astype(np.int32),
                segment=turn,
            )
            for turn in range(turns)
        ]
        for step in steps:
            step.mark(branch=float(sample % 2), pair=float(sample // 2))
        steps[-2].terminated = steps[-1].terminated = True  # the last act of each agent
        steps[-1].reward = float(dice.normal())
        task, outcome = Task(env="drawn", seed=group), float(dice.integers(0, 2))
        played.append(Trajectory(task=task, group=f"{group:03d}", sample=sample, steps=steps, outcome=outcome))
    return played


def policy() -> LanguagePolicy:
    made = LanguagePolicy(
        "main", RunSetup(seed=0, texts=lambda: ["x"]), hidden=16, heads=2, layers=1, context=64, vocabulary=260,
        value_head=True,
    )  # fmt: skip
    torch.nn.init.normal_(made.module.value.linear.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    return made


Given = tuple[Batch, Iteration]


def prepared(played: list[Trajectory], made: LanguagePolicy, *, advantage: str = "ppo") -> Given:
    """All columns that losses may read; ratios to the old policy and to the reference are not 1."""
    stages = Stages(
        reward=bind_all("reward", [BoundPart(name="environment")]),
        selection=[],
        advantage=bind_all("advantage", [BoundPart(name=advantage)]),
        weights=[],
        updates={"main": [bind("loss", BoundPart(name="ppo_clip"))]},
    )
    batch, iteration = Batch.of(played), Iteration({"main": made}, 0, 0, 1.0, WHOLE)
    table = prepare(batch, stages, iteration, several_updates=True)
    dice = torch.Generator().manual_seed(2)
    old = table["logprob_old"]
    batch.table = table.replace(
        logprob_old=old + 0.1 * torch.randn(len(old), generator=dice),
        logprob_reference=old + 0.2 * torch.randn(len(old), generator=dice),
    )
    return batch, iteration


def update(made: LanguagePolicy, given: Given, budget: int, loss: BoundPart, **options: Any) -> tuple[Any, Any]:
    """The gradient and the metrics of one update."""
    recorder = Recorder(made.module)
    updater = Updater(
        policy=made,
        optimizer=recorder,
        loss=bind("loss", loss),
        regularizers=bind_all("regularizer", options.pop("regularizers", [])),
        how="token-mean",
        constant=None,
        epochs=1,
        minibatches=1,
        token_budget=budget,
        several=True,
        **options,
    )
    metrics = updater.update(*given, seed=0)
    return recorder.gradient, metrics


@pytest.mark.parametrize("regularizers", [[], REGULARIZERS], ids=["alone", "with regularizers"])
@pytest.mark.parametrize("loss", LOSSES)
def test_1_two_passes_are_one(loss: str, regularizers: list[BoundPart]) -> None:  # rules 1 and 2
    made = policy()
    given = prepared(episodes(3, 4), made)
    use = BoundPart(name=loss, options=LOSSES[loss])
    (once, seen), (twice, again) = (
        update(made, given, budget, use, regularizers=regularizers) for budget in (WHOLE, PIECES)
    )
    assert float(torch.stack([g.abs().max() for g in once]).max()) > 1e-4, "there is something to compare"
    assert loss != "dual_branch" or seen["policy/branch_kl"] > 0
    assert loss != "preference" or seen["preference/pairs"] > 0
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
    assert seen.keys() == again.keys()
    assert [again[name] for name in seen] == pytest.approx(list(seen.values()), abs=2e-6)


def test_2_agents_gradients() -> None:
    made = policy()
    given = prepared(episodes(2, 4), made)
    use = BoundPart(name="gspo", options=LOSSES["gspo"])
    norms = [update(made, given, budget, use, agent_gradients=True)[1] for budget in (WHOLE, PIECES)]
    names = [name for name in norms[0] if name.startswith("policy/agent/")]
    assert len(names) == 2 and all(norms[0][name] > 0 for name in names)
    assert [norms[1][name] for name in names] == pytest.approx([norms[0][name] for name in names], rel=1e-4)


class Held:
    """A tensor that autograd keeps for the backward pass, counted while it lives."""

    def __init__(self, tensor: Tensor, tally: list[int]) -> None:
        self.tensor, self.tally = tensor, tally
        tally[0] += tensor.numel() * tensor.element_size()
        tally[1] = max(tally)

    def __del__(self) -> None:
        self.tally[0] -= self.tensor.numel() * self.tensor.element_size()


@contextmanager
def peak() -> Iterator[list[int]]:
    """[bytes held now, most bytes held] for backward passes."""
    tally = [0, 0]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Held(tensor, tally), lambda held: held.tensor):
        yield tally


@pytest.mark.parametrize("loss", ["preference", "squared_objective", "ppo_clip_cov"])
def test_3_memory_does_not_grow_with_the_unit(loss: str) -> None:
    made, most = policy(), {}
    for size in (4, 32):
        # The unit is a group, a trajectory or the mini-batch: each grows eightfold.
        played = episodes(1, 4, turns=size) if loss == "squared_objective" else episodes(1, size)
        given = prepared(played, made)
        for budget in (WHOLE, PIECES):
            with peak() as tally:
                update(made, given, budget, BoundPart(name=loss, options=LOSSES[loss]))
            most[size, budget] = tally[1]
    assert most[32, WHOLE] > 5 * most[4, WHOLE], most
    assert most[32, PIECES] < 1.5 * most[4, PIECES], most


def test_4_what_moves_nothing_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    batch, _ = given = prepared(episodes(2, 4), made, advantage="grpo")
    nothing = batch.table["trajectory"][batch.table.token_row] >= 4  # the second group teaches nothing
    batch.table = batch.table.replace(advantage=torch.where(nothing, 0.0, batch.table["advantage"]))
    backwards: list[int] = []
    plain = LanguagePolicy.forward

    def forward(self: Any, samples: Any, which: Any, outputs: Any) -> Any:
        backwards.extend(which if torch.is_grad_enabled() else ())
        return plain(self, samples, which, outputs)

    monkeypatch.setattr(LanguagePolicy, "forward", forward)
    update(made, given, PIECES, BoundPart(name="ppo_clip_cov", options={"share": 0.0}))
    assert sorted(backwards) == list(range(12))  # three turns of four trajectories
