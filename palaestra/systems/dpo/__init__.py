"""DPO, direct preference optimization (arXiv 2305.18290), learns from pairs of answers of which one is preferred. It
needs neither a reward model nor rollouts. Beta times the log-ratio to a frozen reference is the reward that the policy
implies; the loss makes it higher for the preferred answer, by the Bradley-Terry model. Here an answer may be an episode
of several turns; the ratio is then over all acts of the episode. Options of the loss are variants that were published
later: conservative and robust labels, no reference, means over tokens, a margin.

This file is the loss. `data.py` makes a file of pairs from an environment; `pairs.jsonl` is such a file, of sums.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra.pairs import preference_loss
from palaestra.data import TokenBatch
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Positive, register

WHERE = "loss: dpo"
Flips = Annotated[float, pydantic.Field(ge=0, lt=0.5)]


@register(
    "loss",
    "dpo",
    reads=("logprob", "outcome", "pair", "weight"),
    reads_if={"reference_free=False": ("logprob_reference",)},
    scope="pair",
    every_token=True,
    source="arXiv 2305.18290; robust 2403.00409; normalize 2411.15124; reference_free with a margin 2405.14734",
)
def dpo(
    batch: TokenBatch,
    *,
    beta: Positive = 0.1,
    flips: Flips = 0.0,
    robust: bool = False,
    reference_free: bool = False,
    normalize: bool = False,
    margin: NonNegative = 0.0,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """Make the preferred answer of a pair more likely than the other one, both relative to the reference.

        l = Σ over the tokens of an answer of (logprob − logprob_reference)
        z = beta · (l_chosen − l_rejected) − margin
        L = −log sigmoid(z)                                                       flips 0
        L = −(1 − flips) · log sigmoid(z) − flips · log sigmoid(−z)               conservative
        L = (−(1 − flips) · log sigmoid(z) + flips · log sigmoid(−z)) / (1 − 2 · flips)    robust

    A pair is two trajectories of one group with the same mark `pair`, above 0; outcome 1 is preferred to 0. Every token
    carries the loss of its pair, so that with `aggregate: sequence-mean` the scalar is the mean over pairs. An answer
    without a pair, or whose other answer is missing, has loss 0 and counts in that mean.

    Args:
        batch: columns logprob, logprob_reference, outcome, weight and the ids pair, trajectory, group; whole groups.
        beta: > 0. Higher: the policy stays nearer to the reference. Usual: 0.1; 0.01 to 0.5 were published.
        flips: in [0, 0.5), the assumed share of pairs with exchanged labels. Higher: margins stay smaller. Usual: 0.
        robust: use the unbiased form, whose mean over flipped pairs is the loss without flips.
        reference_free: use a uniform reference: l is the log-probability itself.
        normalize: l is the mean over the answer's tokens. A higher beta is usual then: 2 to 10.
        margin: ≥ 0, subtracted from the difference of rewards. Higher: pairs must differ more. With `reference_free`
            and `normalize` this is SimPO. Usual: 0.

    Returns: loss (tokens,) and, of the pair of each token, dpo/accuracy (1 if l_chosen > l_rejected, ½ if equal),
        dpo/margin (beta · difference), dpo/chosen and dpo/rejected (beta · l).
    Raises: MissingColumn, without pair, outcome or reference; InvalidData, for outcomes other than 1 and 0;
        ContractError, if the batch has only a part of a group.
    """
    batch.check_scope("pair", where=WHERE)
    pair, group = batch.unit("pair", where=WHERE), batch.unit("group", where=WHERE)
    counts, outcome = (batch["weight"] > 0) & (pair > 0), batch["outcome"]
    if bool((counts & (outcome != 0) & (outcome != 1)).any()):
        raise InvalidData(
            where=WHERE,
            what="a pair has an outcome other than 1 (preferred) and 0 (not preferred).",
            remedy="Give the preferred trajectory of each pair the outcome 1, and the other one 0.",
        )
    codes, pairs = compact(group * (pair.max() + 1) + pair)
    answer = 2 * codes + (outcome == 0)
    reference = 0.0 if reference_free else torch.where(counts, batch["logprob_reference"], 0.0)
    gain = torch.where(counts, batch["logprob"] - reference, 0.0)
    tokens = torch.zeros(2 * pairs, dtype=gain.dtype, device=gain.device).index_add(0, answer, counts.to(gain.dtype))
    total = torch.zeros_like(tokens).index_add(0, answer, gain)
    reward = beta * (total / tokens.clamp_min(1.0) if normalize else total)
    chosen, rejected = reward.view(-1, 2).unbind(1)
    is_whole = (tokens.view(-1, 2) > 0).all(1)
    right, wrong = preference_loss(chosen - margin, rejected), preference_loss(rejected, chosen - margin)
    loss = ((1 - flips) * right - flips * wrong) / (1 - 2 * flips) if robust else (1 - flips) * right + flips * wrong
    difference = (chosen - rejected).detach()
    metrics = {
        "dpo/accuracy": (difference.sign() + 1) / 2,
        "dpo/margin": difference,
        "dpo/chosen": chosen.detach(),
        "dpo/rejected": rejected.detach(),
    }

    def of_tokens(numbers: Tensor) -> Tensor:
        return torch.where(is_whole, numbers, 0.0)[codes]

    return of_tokens(loss), {name: of_tokens(numbers) for name, numbers in metrics.items()}
