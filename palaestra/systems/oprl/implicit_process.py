"""The reward `implicit_process`: a second model learns step rewards from which trajectories of a group were better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from palaestra.algebra import reward_to_go, segment_count, segment_mean, segment_sum, total_return
from palaestra.algebra.pairs import Pairs, preference_loss, preference_pairs
from palaestra.data import Batch, Key, RunSetup, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import CheckpointError, ContractError, InvalidData, MissingColumn
from palaestra.models.sizes import LoadedModel, PolicySize, copy_of, size_of
from palaestra.parts.optimizers import AdamW
from palaestra.registry import Positive, PositiveInt, register
from palaestra.training.policy_gradient import refuse_exploded, weight_norm

Over = Literal["sum", "mean"]


@register(
    "reward",
    "implicit_process",
    reads=("logprob_behavior",),
    writes=("process",),
    uses=("group",),
    source="arXiv 2509.19199",
)
class ImplicitProcess(StatefulPart):
    """The log-ratio to the behavior policy of a model that prefers good episodes, summed over each step.

        p_k  = beta · Σ over the tokens of step k of (log π_φ − log π_old)          column `process`
        Q(τ) = Σ p_k                                                                over="sum"
        loss = mean over pairs of −log sigmoid(Q(better) − Q(worse))

    π_φ begins as a copy of the policy; π_old are the log-probabilities that the engine recorded. Pairs are made inside
    a group by return. While π_φ = π_old all step rewards are 0.

    With several trainable policies each has a second model, and one loss trains them together. Steps of other policies
    have no step reward (NaN) and count in no Q.

    Args:
        beta: > 0. Higher: larger step rewards, and a model that changes less for the same preference. Usual: 0.05.
        over: "mean" divides Q by the number of steps, as in the public code; "sum" is the paper's.
        pairs: "one_to_one" pairs the best with the worst, the second best with the second worst, and so on, each
            trajectory at most once; "all" takes every unequal pair of a group, as in the public code.
        update: "after" scores a batch before it learns from it; "before" learns first.
        updates: gradient steps on each batch. Higher: the model follows sooner and overfits sooner. Usual: 1.
        normalize: "batch_norm" divides all step rewards by the largest |sum from a step to the end| of the batch.
        lr: the learning rate of the second model's own AdamW. Usual: 1e-6 for large models, 1e-3 for small ones.
        clip: the largest norm of its gradient. Usual: 10.
        model: a folder with the weights to begin with, instead of a copy of the policy; it must share the policy's
            tokenizer.
    """

    def __init__(
        self,
        *,
        beta: Positive = 0.05,
        over: Over = "sum",
        pairs: Literal["one_to_one", "all"] = "one_to_one",
        update: Literal["after", "before"] = "after",
        updates: PositiveInt = 1,
        normalize: Literal["none", "batch_norm"] = "none",
        lr: Positive = 1e-6,
        clip: Positive = 10.0,
        model: str | None = None,
    ) -> None:
        self._beta, self._over, self._every = beta, over, pairs == "all"
        self._update, self._updates, self._normalize = update, updates, normalize
        self._lr, self._clip, self._folder = lr, clip, model
        self._metrics: dict[str, float] = {}
        self.models: dict[str, Any] = {}
        self._optimizer: AdamW | None = None

    @staticmethod
    def loads(options: Mapping[str, Any], policies: Mapping[str, PolicySize], settings: Any) -> list[LoadedModel]:
        """The second model of each trained policy: a copy of the policy, or the model of the folder `model`."""
        trained = {f"second model of {name}": size for name, size in policies.items() if size.trainable}
        folder = None if options["model"] is None else size_of(options["model"])
        if folder is None:
            return [copy_of(size, what, learns=True) for what, size in trained.items()]
        return [LoadedModel(what=what, size=replace(size, model=folder), learns=True) for what, size in trained.items()]

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make the second models and their optimizer.

        Raises: CheckpointError, if the folder's model has other tokens or actions than the policy.
        """
        self.models = {name: self._second(policy, setup) for name, policy in policies.items()}
        self._optimizer = AdamW(
            (p for model in self.models.values() for p in model.module.parameters()), lr=self._lr, clip=self._clip
        )

    def _second(self, policy: Any, setup: RunSetup) -> Any:
        if self._folder is None:
            return policy.clone()
        made, kept = type(policy), {}
        if setup.settings is not None:
            chosen = setup.settings.policies[policy.name].policy
            made = chosen.part.target  # with the option `lora`, the policy itself is of another class
            kept = {name: chosen.options[name] for name in ("of", "lora", "quantize") if name in chosen.options}
        clone = made(policy.name, setup, **kept, model=self._folder).as_trained()
        refuse_other_tokens(
            policy.architecture(), clone.architecture(), where=f"reward: implicit_process, {self._folder}"
        )
        return clone

    def __call__(self, table: StepTable, iteration: Iteration) -> dict[str, Tensor]:
        """The column `process`, float32 (rows,).

        Raises: MissingColumn, InvalidData, if a step has no recorded log-probabilities.
        """
        if self._update == "before":
            self._metrics = self._improve(table, iteration)
        process = implicit_rewards(self._log_ratio(table, iteration), table, beta=self._beta)
        if self._normalize == "batch_norm":
            process = over_largest_sum(process, table)
        return {"process": process.float()}

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Learn from this iteration's pairs.

        Returns: prm/pairs; prm/skipped, 1 if there was no pair and so no update; else prm/loss and prm/accuracy (the
            share of pairs in the right order; ties count half), both measured before learning, on pairs that the model
            has not learned from; prm/grad_norm.
        """
        return self._improve(batch.table, iteration) if self._update == "after" else self._metrics

    def modules(self) -> Mapping[str, Module]:
        """The second models by name."""
        return {f"{name}_model": model.module for name, model in self.models.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer."""
        return self._started().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer; `start` must have run."""
        self._started().load_state_dict(state)

    # ---- scores -------------------------------------------------------------------------------------------
    def _log_ratio(self, table: StepTable, iteration: Iteration) -> Tensor:
        """log π_φ − log π_old, float64 (tokens,), NaN on tokens of policies without a second model."""
        self._started()
        now = torch.full((table.tokens,), torch.nan, dtype=torch.float64)
        for name in self._acting(iteration):
            found = iteration.logprob(self.models[name], name).double()
            now = torch.where(found.isnan(), now, found)
        return now - recorded(table, ~now.isnan())

    def _started(self) -> AdamW:
        if self._optimizer is None:
            raise ContractError(
                where="reward: implicit_process",
                what="it was called before `start`.",
                remedy="Call `start(setup, policies)` first; the training loop does it.",
            )
        return self._optimizer

    def _acting(self, iteration: Iteration) -> list[str]:
        acting = {row.step.policy for row in iteration.rows}
        return [name for name in self.models if name in acting]

    # ---- learning -----------------------------------------------------------------------------------------
    def _improve(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for _ in range(self._updates):
            ratio = self._log_ratio(table, iteration)
            quality, steps = episode_quality(implicit_rewards(ratio, table, beta=self._beta), table, over=self._over)
            pairs = pairs_of(table, steps > 0, every=self._every)
            if not len(pairs.better):
                return {"prm/pairs": 0.0, "prm/skipped": 1.0}
            found = self._step(table, iteration, quality.requires_grad_(), steps, pairs)
            metrics = metrics or found
        return metrics

    def _step(
        self, table: StepTable, iteration: Iteration, quality: Tensor, steps: Tensor, pairs: Pairs
    ) -> dict[str, float]:
        """One gradient step. Q is linear in log π_φ, so its gradient is the factor of each token's log π_φ."""
        optimizer = self._started()
        loss = preference_loss(quality[pairs.better], quality[pairs.worse]).mean()
        (slope,) = torch.autograd.grad(loss, quality)
        slope = self._beta * (slope if self._over == "sum" else slope / steps.clamp_min(1.0))
        share = (slope[table.key("trajectory").codes] * (table.row_weight > 0))[table.token_row].float()
        optimizer.zero()
        for name in self._acting(iteration):
            for which, places in iteration.batches(name):
                if bool((share[places] != 0).any()):
                    now = self.models[name].forward(iteration.samples(name), which, ("logprob",))
                    (share[places].to(now["logprob"].device) * now["logprob"]).sum().backward()
        gap = (quality[pairs.better] - quality[pairs.worse]).detach()
        before = {name: weight_norm(model.module) for name, model in self.models.items()}
        grad_norm = optimizer.step()
        for name, size in before.items():
            norm = weight_norm(self.models[name].module)
            refuse_exploded(f"policy {name}, second model", size, norm, rate="reward.implicit_process.lr")
        return {
            "prm/pairs": float(len(gap)),
            "prm/skipped": 0.0,
            "prm/loss": float(loss.detach()),
            "prm/accuracy": float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean()),
            "prm/grad_norm": grad_norm,
        }


# ---- formulas ---------------------------------------------------------------------------------------------
def implicit_rewards(log_ratio: Tensor, table: StepTable, *, beta: float) -> Tensor:
    """beta · Σ over a row's tokens of log_ratio: float64 (rows,), NaN if log_ratio is NaN on one of them."""
    total = torch.zeros(len(table), dtype=torch.float64)
    return beta * total.index_add(0, table.token_row, log_ratio.double())


def episode_quality(process: Tensor, table: StepTable, *, over: Over = "sum") -> tuple[Tensor, Tensor]:
    """Q of each trajectory, and the number of its scored steps: float64 (trajectories,) each."""
    own = table.key("trajectory")
    scored = Key(own.codes, own.size, own.names, ((table.row_weight > 0) & process.isfinite()).double())
    total = segment_sum if over == "sum" else segment_mean
    return total(process.nan_to_num(), by=scored), segment_count(by=scored)


def pairs_of(table: StepTable, usable: Tensor, *, every: bool) -> Pairs:
    """Pairs (better, worse) of trajectories by return, inside groups. `usable`: bool (trajectories,)."""
    own, groups = table.key("trajectory"), table.key("group")
    score, group = torch.zeros(own.size), torch.zeros(own.size, dtype=torch.int64)
    score[own.codes], group[own.codes] = total_return(table), groups.codes
    return preference_pairs(score, by=Key(group, groups.size, ("group",), usable.double()), every=every)


def over_largest_sum(process: Tensor, table: StepTable) -> Tensor:
    """process divided by the largest |sum from a step to the end| in the table; unchanged if all sums are 0."""
    sums = reward_to_go(table, gamma=1.0, reward=process.nan_to_num()).abs()
    largest = float((sums * (table.row_weight > 0)).max())
    return process / largest if largest > 0 else process


def recorded(table: StepTable, needed: Tensor) -> Tensor:
    """The engine's log-probabilities, float64 (tokens,).

    Args:
        needed: bool (tokens,), the tokens that must have one.

    Raises: MissingColumn, if no token has one; InvalidData, if a needed token has none.
    """
    remedy = "Score steps that a policy of this run sampled; expert and scripted steps have no log-probability."
    where = "reward: implicit_process"
    if "logprob_behavior" not in table:
        raise MissingColumn(where=where, what="no step has log-probabilities of its tokens.", remedy=remedy)
    old = table["logprob_behavior"].double()
    missing = int((needed & ~old.isfinite()).sum())
    if missing:
        what = f"{missing} of {int(needed.sum())} tokens have no recorded log-probability."
        raise InvalidData(where=where, what=what, remedy=remedy)
    return old


def refuse_other_tokens(policy: Mapping[str, Any], second: Mapping[str, Any], *, where: str) -> None:
    """Raise CheckpointError if two models differ in kind, tokenizer, size or actions."""
    differing = [
        f"{key} {second.get(key)}, the policy has {policy.get(key)}"
        for key in ("kind", "tokenizer", "size", "actions")
        if policy.get(key) != second.get(key)
    ]
    if differing:
        raise CheckpointError(
            where=where,
            what=f"its model does not have the policy's tokens or actions: {'; '.join(differing)}.",
            remedy="Give a folder saved from a run with this environment and tokenizer, or leave `model` out.",
        )
