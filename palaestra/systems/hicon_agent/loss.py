"""The loss of HiconAgent's two branches: the trajectory that was sampled with a compressed history, and its twin."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.algebra import kl_estimate
from palaestra.algebra.aggregation import unit_key
from palaestra.data import TokenBatch
from palaestra.data.keys import compact
from palaestra.errors import ContractError
from palaestra.registry import NonNegative, register

WHERE = "loss: dual_branch"
LARGEST = 20.0  # bound on the size of a log-ratio: exp(20) is outside every clip range and still finite
Low = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register(
    "loss",
    "dual_branch",
    reads=("advantage", "branch", "logprob", "logprob_old", "pair", "weight"),
    scope="group",
    every_token=True,
    source="arXiv 2512.01763",
)
def dual_branch(
    batch: TokenBatch,
    *,
    low: Low = 0.2,
    high: NonNegative = 0.2,
    uncompressed: NonNegative = 1.0,
    alignment: NonNegative = 0.1,
) -> tuple[Float[Tensor, " tokens"], dict[str, Tensor]]:
    """The clipped surrogate on the sampled branch, the REINFORCE gradient on its twin, and a KL between them.

        branch 0, c:  −min(ρ A, clip(ρ, 1 − low, 1 + high) A)  +  alignment · k3(π_c ‖ sg[π_u])
        branch 1, u:  −uncompressed · exp(lp − sg[lp]) · A      a ratio of 1, so the gradient of REINFORCE

    A twin has the same response tokens after another prompt; the k-th token of branch 0 is aligned with the k-th of
    branch 1. Without twins it is `ppo_clip`, bit for bit. The mean runs over the tokens of both branches, so when every
    trajectory has a twin it is half of the published sum L_c + L_u + alignment.

    Args:
        batch: columns advantage, logprob, logprob_old, weight, row, group, and branch (0 or 1) and pair (equal for a
            trajectory and its twin, inside a group), each (tokens,); whole groups.
        low, high: the clip range. Usual: 0.2.
        uncompressed: ≥ 0, the factor of the twin's loss. Higher: more of the update comes from the uncompressed
            history. 0: twins act only through `alignment`. Usual: 1.
        alignment: ≥ 0, the factor of the KL, whose k3 has no cap. Higher: the compressed branch stays closer to its
            twin. Usual: 0.1 (the authors' 10 · 0.01).

    Returns: loss (tokens,) and, per token, policy/clip_fraction, policy/kl, policy/ratio and policy/branch_kl.
    Raises: MissingColumn, without branch or pair; ContractError, if the batch cuts a group or a twin has other tokens.
    Differs from the authors' code: tokens are dropped at the input; the KL to the reference is the regularizer `kl`.
    """
    whole = batch["branch"] > 0
    counts, advantage = batch["weight"] > 0, batch["advantage"]
    rho = torch.exp(torch.where(counts, batch["logprob"] - batch["logprob_old"], 0.0).clamp(-LARGEST, LARGEST))
    clipped = torch.minimum(rho, torch.full_like(rho, 1 + high)).clamp(min=1 - low)
    loss = -torch.minimum(rho * advantage, clipped * advantage)
    metrics = {
        "policy/clip_fraction": ((advantage > 0) & (rho > 1 + high)) | ((advantage < 0) & (rho < 1 - low)),
        "policy/kl": torch.where(counts, kl_estimate(batch["logprob"].detach(), batch["logprob_old"]), 0.0),
        "policy/ratio": rho,
    }
    drift = torch.zeros_like(rho)
    if bool(whole.any()):
        one = torch.exp(torch.where(counts, batch["logprob"] - batch["logprob"].detach(), 0.0))
        loss = torch.where(whole, -uncompressed * one * advantage, loss)
        own, other = twins(batch, whole)
        both = counts[own] & counts[other]
        theirs = torch.where(both, batch["logprob"][other].detach(), 0.0)
        ours = torch.where(both, batch["logprob"][own], 0.0)
        drift = drift.index_put((own,), kl_estimate(ours, theirs))
        loss = loss + alignment * drift
        metrics = {name: torch.where(whole, float(name == "policy/ratio"), value) for name, value in metrics.items()}
    metrics["policy/branch_kl"] = drift
    return loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()}


def twins(batch: TokenBatch, whole: Tensor) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Positions of the tokens of branch 0 that have a twin, and of the twins' tokens, aligned one to one.

    Raises: ContractError, if the batch cuts a group, or a twin has no partner or another number of tokens.
    """
    group = unit_key(batch, "group", where=WHERE).codes
    number, size = compact(batch.unit("pair", where=WHERE))
    pair, pairs = compact(group * size + number)
    order = torch.argsort(batch.row, stable=True)  # rows are in the order of turns; tokens keep their order in a row
    order = order[torch.argsort(pair[order], stable=True)]
    counted = torch.zeros(2, pairs, dtype=torch.int64, device=pair.device).index_put(
        (whole.long(), pair), torch.ones_like(pair), accumulate=True
    )
    has = counted[1] > 0
    if not torch.equal(counted[0][has], counted[1][has]):
        wrong = int((counted[0] != counted[1])[has].sum())
        raise ContractError(
            where=WHERE,
            what=f"{wrong} of {int(has.sum())} twins do not have the tokens of their trajectory.",
            remedy="Make twins with the strategy `dual_branch`; selections must drop both of a pair or neither.",
        )
    order = order[has[pair[order]]]
    return order[~whole[order]], order[whole[order]]
