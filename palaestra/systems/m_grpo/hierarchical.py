"""The reward `hierarchical`: it pays the main agent for form and result, and a call for form, result and its score."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, MissingColumn
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import NonNegative, register
from palaestra.systems.m_grpo.calls import Calls, calls_of

WHERE = "reward: hierarchical"


@register(
    "reward",
    "hierarchical",
    reads=("format", "outcome", "invocation?", "parent?", "truncated?"),
    reads_if={"sub_expert": ("expert?",)},
    writes=("reward",),
    source="arXiv 2511.13288, section 3",
)
def hierarchical(
    table: StepTable,
    *,
    main: str | None = None,
    main_format: NonNegative = 0.1,
    main_correct: NonNegative = 0.9,
    sub_format: NonNegative = 0.1,
    sub_correct: NonNegative = 0.4,
    sub_expert: NonNegative = 0.5,
) -> Float[Tensor, " rows"]:
    """Replace all rewards by one for the main agent and one for each call of a sub-agent, on their last rows.

        main   main_format · format + main_correct · correct                          0 if a row of it is malformed
        call   sub_format · format + sub_correct · correct + sub_expert · expert      0 if a row of it is malformed

    Args:
        table: columns format (rows,), 1 where the act was well-formed, else 0; outcome (rows,), which is `correct` of
            the main agent's answer; expert (rows,), a judge's score of a call, on the call's last row; agent, turn,
            invocation and parent.
        main: name of the main agent; None: rows without a parent are the main agent's.
        main_format, main_correct: ≥ 0. Higher: form, or the result, counts more. Usual: 0.1, 0.9.
        sub_format, sub_correct, sub_expert: ≥ 0; `sub_correct` pays a call for the main result, `sub_expert` for its
            own score. Usual: 0.1, 0.4, 0.5.

    Returns: float32 (rows,), 0 on all rows but the last of the main agent and of each call.
    Raises: MissingColumn, without `format`, `outcome` or, if there are calls and sub_expert > 0, `expert`; InvalidData,
        for a trajectory without outcome, which the reward of its calls needs, for a format that is neither 0 nor 1, or
        for a call without a parent.
    """
    counts = table.row_weight > 0
    called = calls_of(table, main=main, where=WHERE)
    correct, form = _judged(table, counts), _format(table, counts)
    out = torch.zeros(len(table), dtype=torch.float64)
    for key, rows, amount in (
        (table.key("trajectory"), called.main, main_format + main_correct * correct),
        (called.key, ~called.main, sub_format + sub_correct * correct + _expert(table, called, counts, sub_expert)),
    ):
        one = Key(key.codes, key.size, key.names, (rows & counts).double())
        sound = segment_sum(1 - form, by=one)[key.codes] == 0
        out = torch.where(_last(table, one) & sound, amount, out)
    return out.float()


def _judged(table: StepTable, counts: Tensor) -> Float[Tensor, " rows"]:
    outcome = outcomes_of(table)
    missing = outcome.isnan() & counts
    if bool(missing.any()):
        row = int(missing.nonzero()[0])
        raise InvalidData(
            where=f"{WHERE}, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what="it has no outcome, and the reward of its calls depends on it.",
            remedy="Let the environment give `success` or `score` in its last `info`.",
        )
    return outcome.nan_to_num().double()


def _format(table: StepTable, counts: Tensor) -> Float[Tensor, " rows"]:
    form = table["format"].double()
    strange = counts & (form != 0) & (form != 1)
    if bool(strange.any()):
        row = int(strange.nonzero()[0])
        raise InvalidData(
            where=f"{WHERE}, column `format`, turn {int(table['turn'][row])}",
            what=f"it is {float(form[row]):g}; it must be 0 or 1.",
            remedy="Give 1 for a well-formed act and 0 for any other; a malformed rollout or call earns exactly 0.",
        )
    return form


def _expert(table: StepTable, called: Calls, counts: Tensor, share: float) -> Tensor:
    if share == 0 or not bool((counts & ~called.main).any()):
        return torch.zeros(len(table), dtype=torch.float64)
    if "expert" not in table:
        raise MissingColumn(
            where=WHERE,
            what="there are calls, but no score of them (column `expert`).",
            remedy='Let the environment give {"expert": {agent: number}} when a call ends, or set `sub_expert: 0`.',
        )
    return share * table["expert"].nan_to_num().double()


def _last(table: StepTable, one: Key) -> Bool[Tensor, " rows"]:
    """The last row in time of each set, among the rows that count."""
    counts = one.weights > 0
    turn = torch.where(counts, table["turn"], -1)
    latest = torch.full((one.size,), -1).scatter_reduce(0, one.codes, turn, "amax")
    return counts & (table["turn"] == latest[one.codes])
