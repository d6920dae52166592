"""TokenBatch: the response tokens of one (micro-)batch of one policy, as losses read them; and aggregation.

Knows per-token numbers and which row, sequence and trajectory a token belongs to. Knows no model.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data.segments import Key, compact, segment_count
from palaestra.errors import ContractError, InvalidData, MissingColumn

Aggregation = Literal[
    "token-mean",
    "sequence-mean",
    "sequence-sum",
    "sequence-sum-norm",
    "constant-length",
    "step-mean",
    "trajectory-step-mean",
    "group-mean",
    "agent-mean",
]


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


def unit_key(batch: TokenBatch, unit: str, *, where: str) -> Key:
    """The unit of each token (`row`, `trajectory`, `invocation`, `group`); tokens that are masked weigh nothing in it.

    Raises: ContractError, if the batch may hold a part of a unit only.
    """
    if unit not in batch.whole:
        raise ContractError(
            where=where,
            what=f"this batch may hold a part of a {unit} only.",
            remedy="Use the level of tokens or turns, or batches that hold whole trajectories.",
        )
    return _key(batch.need(unit, where=where), (batch.weight > 0).double())


def coefficients(
    batch: TokenBatch, *, how: Aggregation = "token-mean", constant: float | None = None
) -> Float[Tensor, " tokens"]:
    """The weight of each token in the scalar loss: loss = Σ coefficient · per-token loss.

    Made once from the whole mini-batch and then cut with it, so that micro-batches change nothing.
    m = tokens that count, n = sequences with such tokens, L_i = those tokens of sequence i:

        token-mean            1 / Σ m
        sequence-mean         1 / (n L_i)             mean in a sequence, then over sequences (GRPO)
        sequence-sum          1 / n
        sequence-sum-norm     1 / constant            (the public code of Dr. GRPO)
        constant-length       1 / (n constant)        (what Dr. GRPO describes)
        step-mean             mean in a row, then over rows
        trajectory-step-mean  mean in a row, over the rows of a trajectory, over trajectories
        group-mean            mean over the tokens of a group, then over groups
        agent-mean            mean over the tokens of an agent, then over agents: no role gains weight by talking

    "Sequence" is the trajectory's tokens, however many training samples hold them. A token counts if its weight is
    positive, or with `batch.counted`, if that is: masks of selection shrink the denominators, rejected importance
    weights do not.

    Returns: float64 (tokens,), all 0 if every token is masked.
    Raises: InvalidData, if `constant` is missing or not positive where it is needed.
    """
    kept = ((batch.weight if batch.counted is None else batch.counted) > 0).double()
    sequence = _key(batch.trajectory, kept)
    if how in ("sequence-sum-norm", "constant-length") and (constant is None or constant <= 0):
        raise InvalidData(
            where=f"aggregate: {how}",
            what=f"`constant` must be positive, found {constant}.",
            remedy="Give the generation budget, for instance rollout.max_tokens; it must not vary from batch to batch.",
        )
    n = _count(sequence)
    match how:
        case "token-mean":
            return kept / kept.sum().clamp_min(1.0)
        case "sequence-mean":
            return kept / (n * _size(sequence))
        case "sequence-sum":
            return kept / n
        case "sequence-sum-norm":
            return kept / float(constant or 1.0)
        case "constant-length":
            return kept / (n * float(constant or 1.0))
        case "step-mean":
            row = _key(batch.row, kept)
            return kept / (_count(row) * _size(row))
        case "trajectory-step-mean":
            row = _key(batch.row, kept)
            rows = segment_count(by=Key(sequence.codes, sequence.size, (), kept / _size(row)))
            return kept / (n * rows[sequence.codes].clamp_min(1e-300) * _size(row))
        case "group-mean":
            group = _key(batch.need("group", where="aggregate: group-mean"), kept)
            return kept / (_count(group) * _size(group))
        case "agent-mean":
            agent = _key(batch.need("agent", where="aggregate: agent-mean"), kept)
            return kept / (_count(agent) * _size(agent))
    raise InvalidData(where="aggregate", what=f"unknown mode {how!r}.", options=Aggregation.__args__)


def aggregate(
    loss: Float[Tensor, " tokens"], batch: TokenBatch, *, how: Aggregation = "token-mean", constant: float | None = None
) -> Tensor:
    """Σ coefficient · weight · loss: a scalar with gradient; 0, and a warning, if every token is masked."""
    if len(batch) and not bool((batch.weight > 0).any()):
        warnings.warn(f"aggregate: all {len(batch)} tokens are masked; the loss is 0.", stacklevel=2)
    return (coefficients(batch, how=how, constant=constant).to(loss.dtype) * batch.weight * loss).sum()


def _key(codes: Tensor, weight: Tensor) -> Key:
    codes, size = compact(codes)
    return Key(codes, size, (), weight)


def _count(key: Key) -> Tensor:
    return (segment_count(by=key) > 0).sum().double().clamp_min(1.0)


def _size(key: Key) -> Tensor:
    return segment_count(by=key)[key.codes].clamp_min(1.0)


def kl_estimate(
    logprob: Float[Tensor, " tokens"],
    reference: Float[Tensor, " tokens"],
    *,
    how: Literal["k1", "k2", "k3"] = "k3",
    cap: float | None = None,
) -> Float[Tensor, " tokens"]:
    """Estimates of KL(policy ‖ reference) from tokens sampled by the policy. d = reference − logprob:

    k1 = −d          unbiased, may be negative
    k2 = d² / 2      biased, low variance
    k3 = eᵈ − d − 1  unbiased, never negative, without an upper bound: 2 · 10⁴ at d = 10, infinite in float32 at 89

    Args:
        cap: the largest k3; a token beyond it has no gradient. None: there is none, as in the metric `policy/kl` of
            the losses and in the alignment of `dual_branch`. k1 and k2 are not capped.
    """
    difference = reference - logprob
    if how == "k1":
        return -difference
    if how == "k2":
        return difference.square() / 2
    if cap is None:
        return torch.exp(difference) - difference - 1
    small = difference.clamp(max=math.log1p(cap) + 2)  # where k3 is above the cap already; exp never overflows
    return (torch.exp(small) - small - 1).clamp(max=cap)
