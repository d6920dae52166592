"""Aggregation of losses per token to one number, by a coefficient for each token."""

from __future__ import annotations

import warnings
from typing import get_args

from jaxtyping import Float
from torch import Tensor

from palaestra.algebra.segments import segment_count
from palaestra.data.keys import Key, compact
from palaestra.data.tokens import TokenBatch
from palaestra.errors import InvalidData
from palaestra.registry.options import Aggregation


def unit_key(batch: TokenBatch, unit: str, *, where: str) -> Key:
    """The unit of each token (`row`, `trajectory`, `invocation`, `group`). Masked tokens have weight 0 in it.

    Raises: ContractError, if the batch may hold only a part of a unit.
    """
    batch.check_scope(unit, where=where)
    return _key(batch.unit(unit, where=where), (batch["weight"] > 0).double())


def coefficients(
    batch: TokenBatch, *, how: Aggregation = "token-mean", constant: float | None = None
) -> Float[Tensor, " tokens"]:
    """The weight of each token in the scalar loss: loss = Σ coefficient · per-token loss.

    They are computed once for the whole mini-batch and then cut with it, so that the size of micro-batches changes no
    number. m is 1 for a token that counts and else 0, n = sequences with such tokens, L_i = such tokens of sequence i:

        token-mean            1 / Σ m
        sequence-mean         1 / (n L_i)             mean in a sequence, then over sequences (GRPO)
        sequence-sum          1 / n
        sequence-sum-norm     1 / constant            (the public code of Dr. GRPO)
        constant-length       1 / (n constant)        (what Dr. GRPO describes)
        step-mean             mean in a row, then over rows
        trajectory-step-mean  mean in a row, over the rows of a trajectory, over trajectories
        group-mean            mean over the tokens of a group, then over groups
        agent-mean            mean over the tokens of an agent, then over agents: long replies give a role no weight

    A sequence is all tokens of a trajectory, in however many training samples they are. A token counts if its column
    `counts` is positive, or its weight in a batch without that column. So a mask of a selection makes the denominators
    smaller, and a rejected importance weight does not.

    Returns: float64 (tokens,), all 0 if every token is masked.
    Raises: InvalidData, if `constant` is missing or not positive where it is needed.
    """
    kept = (batch["counts" if "counts" in batch else "weight"] > 0).double()
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
            group = _key(batch.unit("group", where="aggregate: group-mean"), kept)
            return kept / (_count(group) * _size(group))
        case "agent-mean":
            agent = _key(batch.unit("agent", where="aggregate: agent-mean"), kept)
            return kept / (_count(agent) * _size(agent))
    raise InvalidData(where="aggregate", what=f"unknown mode {how!r}.", options=get_args(Aggregation))


def aggregate(
    loss: Float[Tensor, " tokens"], batch: TokenBatch, *, how: Aggregation = "token-mean", constant: float | None = None
) -> Tensor:
    """Σ coefficient · weight · loss: a scalar with gradient. It is 0, with a warning, if all tokens are masked."""
    if len(batch) and not bool((batch["weight"] > 0).any()):
        warnings.warn(f"aggregate: all {len(batch)} tokens are masked; the loss is 0.", stacklevel=2)
    return (coefficients(batch, how=how, constant=constant).to(loss.dtype) * batch["weight"] * loss).sum()


def _key(codes: Tensor, weight: Tensor) -> Key:
    codes, size = compact(codes)
    return Key(codes, size, (), weight)


def _count(key: Key) -> Tensor:
    return (segment_count(by=key) > 0).sum().double().clamp_min(1.0)


def _size(key: Key) -> Tensor:
    return segment_count(by=key)[key.codes].clamp_min(1.0)
