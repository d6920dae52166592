"""Outputs of policies: numbers for each response token, computed from the log-probabilities of all choices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor

from palaestra.errors import ContractError, nearest

TokenOutput = Callable[[Tensor, Tensor], Tensor]


class HasOutputs(Protocol):
    """The part of a policy that lists its outputs."""

    name: str

    @property
    def outputs(self) -> frozenset[str]: ...


def token_logprob(logprobs: Float[Tensor, "tokens choices"], taken: Int[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """The log-probability of the choice that was taken."""
    return logprobs.gather(1, taken[:, None])[:, 0]


def token_entropy(logprobs: Float[Tensor, "tokens choices"], taken: Int[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """−Σ p · log p over all choices, in nats."""
    return -(logprobs.exp() * logprobs).sum(-1)


# What every policy over tokens or actions gives. The attribute `token_outputs` of a policy begins with it.
TOKEN_OUTPUTS: Mapping[str, TokenOutput] = {"logprob": token_logprob, "entropy": token_entropy}


def refuse_unknown_outputs(outputs: Collection[str], policy: HasOutputs) -> None:
    """Raises: ContractError, for an output that the policy does not have."""
    for output in sorted(set(outputs) - policy.outputs - {"bootstrap_value"}):
        raise ContractError(
            where=f"policy {policy.name}",
            what=f"it has no output `{output}`. Its outputs are: {', '.join(sorted(policy.outputs))}.",
            options=nearest(output, policy.outputs),
            remedy="Add a function to the policy's `token_outputs`, or read another column.",
        )


def token_columns(
    functions: Mapping[str, TokenOutput], logprobs: Tensor, taken: Tensor, wanted: Sequence[str], *, policy: str
) -> dict[str, Tensor]:
    """Compute these outputs of the tokens.

    Raises: ContractError, if a function does not return one value for each token.
    """
    columns = {name: functions[name](logprobs, taken) for name in wanted}
    for name, column in columns.items():
        if not isinstance(column, Tensor) or column.shape[:1] != taken.shape:
            raise ContractError(
                where=f"policy {policy}, output {name}",
                what=f"its function returned {_shown(column)} for {len(taken)} tokens.",
                remedy="Return a tensor of shape (tokens,) or (tokens, …).",
            )
    return columns


def _shown(column: object) -> str:
    return f"the shape {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
