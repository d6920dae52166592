"""TokenBatch: the response tokens of one policy that a loss is computed on."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from palaestra.errors import ContractError, MissingColumn, nearest

IDS = ("row", "trajectory", "group", "agent", "invocation", "pair")
# Units of tokens; each consists of whole units that stand before it. So a batch of scope "trajectory" also holds whole
# invocations and whole rows.
SCOPES = ("row", "invocation", "trajectory", "pair", "group", "minibatch")


class TokenBatch:
    """Ids and columns of tokens. The first dimension of every tensor is the tokens.

    Keyword arguments that are ids (row, trajectory, group, agent, invocation, pair) are int64 codes (tokens,): equal
    codes mean the same unit. All others are columns, read as `batch["logprob_old"]`:

        logprob, entropy, value …      of the policy in training; only these carry gradient
        logprob_old, value_old …       of the same policy at the start of the update
        logprob_behavior               of the engine that sampled the token
        logprob_reference              of the reference policy
        advantage, weight, counts      credit, factor of the token's loss, 1 where the token counts in denominators
        value_target, value_weight     target of the critic's value, and how much the token counts in its loss
        any other name                 a column of the table; the value of a row is repeated for its tokens

    Attributes:
        columns: name → tensor (tokens, …).
        scope: the largest unit of `SCOPES` that this batch holds completely.
        minibatch: the mini-batch that this batch is cut from, without outputs of the policy in training; None unless
            the loss is registered with `frozen_minibatch=True`.
        seed: decides the random draws of a loss in this mini-batch.
    """

    __slots__ = (*IDS, "columns", "minibatch", "scope", "seed")

    row: Int[Tensor, " tokens"]
    trajectory: Int[Tensor, " tokens"]
    group: Int[Tensor, " tokens"] | None
    agent: Int[Tensor, " tokens"] | None
    invocation: Int[Tensor, " tokens"] | None
    pair: Int[Tensor, " tokens"] | None

    def __init__(
        self,
        *,
        row: Int[Tensor, " tokens"],
        trajectory: Int[Tensor, " tokens"],
        group: Int[Tensor, " tokens"] | None = None,
        agent: Int[Tensor, " tokens"] | None = None,
        invocation: Int[Tensor, " tokens"] | None = None,
        pair: Int[Tensor, " tokens"] | None = None,
        scope: str = "row",
        minibatch: TokenBatch | None = None,
        seed: int = 0,
        **columns: Tensor,
    ) -> None:
        self.row, self.trajectory, self.group = row, trajectory, group
        self.agent, self.invocation, self.pair = agent, invocation, pair
        self.scope, self.minibatch, self.seed, self.columns = scope, minibatch, seed, columns

    def __len__(self) -> int:
        return len(self.row)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        """The column of this name. Raises: MissingColumn, with the nearest names."""
        column = self.columns.get(name)
        if column is None:
            raise MissingColumn(
                where=f"batch[{name!r}]",
                what=f"the batch has no column `{name}`; it has {', '.join(sorted(self.columns))}.",
                options=nearest(name, self.columns),
                remedy=f"Name it in the loss's registration, `reads=(…, {name!r})`. If it is there, some part must "
                "give it: an estimator by `Credit(…, columns=…)`, a policy by `token_outputs`, a world by `info`.",
            )
        return column

    def unit(self, name: str, *, where: str) -> Int[Tensor, " tokens"]:
        """The ids of this name. Raises: MissingColumn, which names the caller `where`, if the batch lacks them."""
        codes: Tensor | None = getattr(self, name)
        if codes is None:
            raise MissingColumn(where=where, what=f"it needs the ids `{name}`, which this batch lacks.")
        return codes

    def check_scope(self, unit: str, *, where: str) -> None:
        """Refuse a batch that may hold only a part of such a unit. Raises: ContractError."""
        if SCOPES.index(unit) > SCOPES.index(self.scope):
            raise ContractError(
                where=where,
                what=f"this batch may hold only a part of a {unit}.",
                remedy=f'Register the loss with `scope="{unit}"`, or compute over a smaller unit.',
            )

    def replace(self, **named: Any) -> TokenBatch:
        """The same batch with these columns, ids or attributes replaced; None removes a column."""
        fixed = {name: named.pop(name, getattr(self, name)) for name in (*IDS, "scope", "minibatch", "seed")}
        columns = {name: column for name, column in {**self.columns, **named}.items() if column is not None}
        return TokenBatch(**fixed, **columns)

    def take(self, index: Int[Tensor, " kept"]) -> TokenBatch:
        """The tokens at `index`, in this order."""
        ids = {name: None if (codes := getattr(self, name)) is None else codes[index] for name in IDS}
        return self.replace(**ids, **{name: column[index] for name, column in self.columns.items()})

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on a device: its ids, columns and mini-batch."""
        ids = {name: None if (codes := getattr(self, name)) is None else codes.to(device) for name in IDS}
        columns = {name: column.to(device) for name, column in self.columns.items()}
        minibatch = None if self.minibatch is None else self.minibatch.to(device)
        return self.replace(**ids, **columns, minibatch=minibatch)
