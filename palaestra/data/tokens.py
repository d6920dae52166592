"""TokenBatch: the response tokens of one (micro-)batch of one policy, as losses read them; and aggregation.

Knows per-token numbers and which row, sequence and trajectory a token belongs to. Knows no model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.errors import MissingColumn


@dataclass(slots=True, kw_only=True, eq=False)
class TokenBatch:
    """All tensors are (tokens,). Only `logprob`, `entropy` and `value` carry gradient.

    Attributes:
        advantage: credit of the token.
        logprob: of the taken token under the policy in training.
        proximal: under the policy frozen at the start of the update (the "old" policy).
        behavior: under what really sampled it.
        reference: under the reference policy.
        entropy, value: of the policy in training; value_old: before the update; value_target: its aim.
        weight: product of all token weights; 0 is masked.
        counted: positive on tokens that count in the denominators of `coefficients`, also where `weight` rejects
            them; None: those with a weight.
        row, sequence, trajectory, group, agent: int64 codes; a sequence is one training sample.
        invocation: int64 codes; one call of one agent in one trajectory.
        foreign: 1 where the row's prompt is not the one it was sampled with, else 0.
        whole: which of these units this batch holds completely.
        more: further columns of the table, which a loss names in its `reads`.
        mini: the whole mini-batch that this is a cut of, with log-probabilities, entropies and ratios of now but
            no gradient; for losses that use "mini_batch". With "mini_columns" it has the table's columns alone and
            costs no pass. place: int64, where this cut's tokens stand in it.
        seed: decides what a loss draws by lot in this mini-batch.
    """

    advantage: Float[Tensor, " tokens"]
    logprob: Float[Tensor, " tokens"]
    proximal: Float[Tensor, " tokens"]
    weight: Float[Tensor, " tokens"]
    row: Int[Tensor, " tokens"]
    sequence: Int[Tensor, " tokens"]
    trajectory: Int[Tensor, " tokens"]
    group: Int[Tensor, " tokens"] | None = None
    agent: Int[Tensor, " tokens"] | None = None
    invocation: Int[Tensor, " tokens"] | None = None
    behavior: Float[Tensor, " tokens"] | None = None
    reference: Float[Tensor, " tokens"] | None = None
    entropy: Float[Tensor, " tokens"] | None = None
    value: Float[Tensor, " tokens"] | None = None
    value_old: Float[Tensor, " tokens"] | None = None
    value_target: Float[Tensor, " tokens"] | None = None
    value_weight: Float[Tensor, " tokens"] | None = None
    foreign: Float[Tensor, " tokens"] | None = None
    counted: Float[Tensor, " tokens"] | None = None
    whole: frozenset[str] = frozenset({"row", "sequence"})
    more: Mapping[str, Tensor] = field(default_factory=dict)
    mini: TokenBatch | None = None
    place: Int[Tensor, " tokens"] | None = None
    seed: int = 0

    def __len__(self) -> int:
        return len(self.advantage)

    def replace(self, **fields: Any) -> TokenBatch:
        """The same batch with these fields exchanged."""
        return dataclasses.replace(self, **fields)

    def take(self, index: Int[Tensor, " kept"]) -> TokenBatch:
        """The tokens at `index`, in this order."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        picked: dict[str, Any] = {n: v[index] if isinstance(v, Tensor) else v for n, v in fields.items()}
        picked["more"] = {name: values[index] for name, values in self.more.items()}
        return TokenBatch(**picked)

    def to(self, device: torch.device) -> TokenBatch:
        """The same tokens on a device: all columns, and the mini-batch that this is a cut of."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        moved = {n: v.to(device) for n, v in fields.items() if isinstance(v, Tensor)}
        more = {name: values.to(device) for name, values in self.more.items()}
        return self.replace(**moved, more=more, mini=None if self.mini is None else self.mini.to(device))

    def need(self, name: str, *, where: str) -> Tensor:
        """The column, or MissingColumn saying who reads it."""
        column = self.more.get(name, getattr(self, name, None))
        if column is None:
            raise MissingColumn(where=where, what=f"it reads the token column `{name}`, which this batch lacks.")
        return column
