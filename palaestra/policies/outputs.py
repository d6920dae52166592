"""Outputs of policies: numbers per response token, made from log-probabilities of all choices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from palaestra.errors import ContractError, nearest

TokenOutput = Callable[[Tensor, Tensor], Tensor]


class HasOutputs(Protocol):
    """A policy, as far as its outputs are concerned."""

    name: str

    @property
    def outputs(self) -> frozenset[str]: ...


def token_logprob(logprobs: Float[Tensor, "tokens choices"], taken: Int[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """The log-probability of the choice that was taken."""
    return logprobs.gather(1, taken[:, None])[:, 0]


def token_entropy(logprobs: Float[Tensor, "tokens choices"], taken: Int[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """−Σ p · log p over all choices, in nats."""
    return -(logprobs.exp() * logprobs).sum(-1)


def refuse_unknown_outputs(outputs: Collection[str], policy: HasOutputs) -> None:
    """Raises: ContractError, for an output that the policy does not have."""
    for output in sorted(set(outputs) - policy.outputs - {"bootstrap_value"}):
        raise ContractError(
            where=f"policy {policy.name}",
            what=f"it gives no output `{output}`; it gives {', '.join(sorted(policy.outputs))}.",
            options=nearest(output, policy.outputs),
            remedy="Add a function to the policy's `token_outputs`, or read another column.",
        )
