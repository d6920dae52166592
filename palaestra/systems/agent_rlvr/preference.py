"""Direct preference optimization over whole episodes of the same task."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra.aggregation import unit_key
from palaestra.algebra.pairs import preference_loss, preference_pairs
from palaestra.data import Key, TokenBatch
from palaestra.errors import InvalidData
from palaestra.registry import Positive, register

WHERE = "loss: preference"


@register(
    "loss",
    "preference",
    reads=("logprob", "logprob_reference", "outcome", "weight", "truncated?"),
    uses=("reference", "group"),
    scope="group",
    every_token=True,
    source="arXiv 2305.18290; on episodes of agents 2506.11425",
)
def preference(
    batch: TokenBatch, *, beta: Positive = 0.1, pairs: Literal["one_to_one", "all"] = "one_to_one"
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Make the better episode of a pair more likely than the worse one, both relative to the reference.

        z_i = Σ over the tokens of episode i of (logprob − reference)
        loss of a pair = −log sigmoid(beta · (z_better − z_worse))

    A group is one task, so both episodes of a pair have the same task. Only episodes with unequal outcomes form pairs.
    Every token carries the mean loss of its episode's pairs, so that with `aggregate: sequence-mean` the scalar is the
    mean over episodes; an episode without a pair counts there with 0. Advantages are not read.

    Args:
        batch: columns logprob, reference, outcome, weight, trajectory, group, each (tokens,); whole groups. An episode
            that a limit cut off unjudged has the outcome 0.
        beta: > 0. Higher: the policy stays nearer to the reference. Usual: 0.1.
        pairs: "one_to_one" pairs the best episode with the worst, the second best with the second worst and so on, each
            episode at most once; "all" takes every pair with unequal outcomes.

    Returns: loss (tokens,) and preference/accuracy (share of pairs ranked right; a tie counts half), preference/margin
        (beta · difference of gains) and preference/pairs (1 where an episode has a pair).
    Raises: MissingColumn, without reference or outcome; InvalidData, for an episode without an outcome; ContractError,
        if the batch has only a part of a group.
    """
    counts = batch["weight"] > 0
    own, groups = unit_key(batch, "trajectory", where=WHERE), unit_key(batch, "group", where=WHERE)
    reference, outcome = batch["logprob_reference"], _outcomes(batch, own)
    _refuse_missing(outcome, counts)
    gain = torch.where(counts, batch["logprob"] - torch.where(counts, reference, 0.0), 0.0)
    total = gain.new_zeros(own.size).index_add(0, own.codes, gain)
    score = outcome.new_zeros(own.size)
    group = torch.zeros(own.size, dtype=torch.int64, device=outcome.device)
    score[own.codes[counts]] = outcome[counts]
    group[own.codes] = groups.codes
    usable = torch.zeros(own.size, dtype=torch.float64, device=outcome.device).index_add(0, own.codes, counts.double())
    found = preference_pairs(score, by=Key(group, groups.size, ("group",), usable), every=pairs == "all")
    values = preference_loss(beta * total[found.better], beta * total[found.worse])
    margin = (beta * (total[found.better] - total[found.worse])).detach()
    right = (margin > 0).to(margin.dtype) + 0.5 * (margin == 0).to(margin.dtype)
    ends = torch.cat([found.better, found.worse])
    number = torch.zeros_like(total).index_add(0, ends, torch.ones_like(total[ends]))

    def of_tokens(numbers: Tensor) -> Tensor:
        """Give each token the mean of `numbers` over its episode's pairs."""
        sums = torch.zeros_like(total).index_add(0, ends, torch.cat([numbers, numbers]))
        return (sums / number.clamp_min(1.0))[own.codes]

    metrics = {
        "preference/accuracy": of_tokens(right),
        "preference/margin": of_tokens(margin),
        "preference/pairs": (number > 0).to(margin.dtype)[own.codes],
    }
    return of_tokens(values), {name: value.detach() for name, value in metrics.items()}


def _outcomes(batch: TokenBatch, own: Key) -> Tensor:
    """The outcome of each token's episode."""
    outcome = batch["outcome"]
    if "truncated" not in batch:
        return outcome
    is_cut = torch.zeros(own.size, dtype=torch.bool, device=outcome.device)
    is_cut[own.codes[batch["truncated"] > 0]] = True
    return torch.where(outcome.isnan() & is_cut[own.codes], 0.0, outcome)


def _refuse_missing(outcome: Tensor, counts: Tensor) -> None:
    missing = int((outcome.isnan() & counts).sum())
    if missing:
        raise InvalidData(
            where=WHERE,
            what=f"{missing} of {int(counts.sum())} tokens belong to episodes without an outcome.",
            remedy="Let the environment give `success` or `score` in its last `info`, or leave such episodes out.",
        )
