"""Passes: plans which outputs of each policy an iteration computes, and fills the columns with them.

A part declares in `reads` the columns that it needs. A column `logprob_old` is the output `logprob` of the policy at
the start of the update, `logprob_reference` that of the reference policy, `logprob` that of the policy in training.
From these names this module plans at most three kinds of passes:

    at the start     x_old, for parts of the table, and for losses if the iteration makes several updates
    reference        x_reference
    in each update   x, the only outputs that carry gradient

With a single update on fresh episodes, the policy at the start is the policy in training. Then a loss that reads
`logprob_old` needs no further pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palaestra.data import Iteration, StepTable
from palaestra.data.batches import micro_batches_of, token_index
from palaestra.data.protocols import Samples
from palaestra.registry.bound import BoundPart
from palaestra.registry.column_names import output_of

METRICS = "metrics"  # the reader of outputs that the log itself needs in each update
UNSAID = ("value_old",)  # outputs that are computed for a part of the table without `reads`

Readers = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A part as the plan sees it.

    Attributes:
        name: for messages, such as "loss: ppo_clip".
        reads: the columns that it reads; None, if the part does not declare them.
        frozen_minibatch: whether it reads columns of the whole mini-batch before its tokens are evaluated.
    """

    name: str
    reads: tuple[str, ...] | None
    frozen_minibatch: bool = False


def reader(part: BoundPart) -> Reader:
    """A part with its options as the plan sees it."""
    declared = part.part
    return Reader(
        name=f"{declared.slot}: {declared.name}", reads=part.reads, frozen_minibatch=declared.frozen_minibatch
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The outputs of one policy that one iteration computes, each with the parts that read it.

    Attributes:
        start: outputs of the policy at the start of the update, for the whole table.
        reference: outputs of its reference. update: outputs of the policy in training, in each update.
        table_reads: whether a part of the table reads an output of the start, so that rows of roles that are not
            trained are evaluated too.
    """

    start: Readers = field(default_factory=dict)
    reference: Readers = field(default_factory=dict)
    update: Readers = field(default_factory=dict)
    table_reads: bool = False

    def lines(self) -> list[str]:
        """The lines of `explain`, such as `start of the update: logprob (loss: ppo_clip), value (advantage: ppo)`."""
        named = (("start of the update", self.start), ("reference", self.reference), ("each update", self.update))
        return [
            f"{when}: " + ", ".join(f"{output} ({', '.join(readers)})" for output, readers in sorted(outputs.items()))
            for when, outputs in named
            if outputs
        ]


def plan_passes(
    table_parts: Iterable[Reader], update_parts: Iterable[Reader], *, gives: Collection[str], several_updates: bool
) -> PassPlan:
    """The passes that these parts need of one policy.

    Args:
        table_parts: of the slots reward, selection, advantage and weights.
        update_parts: loss and regularizers of this policy.
        gives: the outputs that the policy has; other names in `reads` are columns of the table.
        several_updates: whether an iteration makes more than one update, or learns from episodes of older weights.
    """
    start: dict[str, list[str]] = {}
    reference: dict[str, list[str]] = {}
    update: dict[str, list[str]] = {"logprob": [METRICS], "entropy": [METRICS]}
    table_reads = False

    def note(into: dict[str, list[str]], output: str, reader: str) -> None:
        if output not in gives:
            return
        readers = into.setdefault(output, [])
        if reader not in readers:
            readers.append(reader)

    for part in table_parts:
        for column in UNSAID if part.reads is None else _required(part.reads):
            output, of = output_of(column)
            if of == "old":
                table_reads = True
                note(start, output, part.name)
            elif of == "reference":
                note(reference, output, part.name)
    for part in update_parts:
        for column in _required(part.reads or ()):
            output, of = output_of(column)
            if of == "old":  # with a single update on fresh episodes it is the present output, detached
                note(start if several_updates or part.frozen_minibatch else update, output, part.name)
            elif of == "reference":
                note(reference, output, part.name)
            elif of == "policy":
                note(update, output, part.name)
    if several_updates or start:  # any other pass gives it without further cost
        note(start, "logprob", METRICS)
    return PassPlan(
        start={output: tuple(readers) for output, readers in start.items()},
        reference={output: tuple(readers) for output, readers in reference.items()},
        update={output: tuple(readers) for output, readers in update.items()},
        table_reads=table_reads,
    )


def _required(columns: Iterable[str]) -> list[str]:
    """The columns without optional ones, such as "logprob_old?", which are read only if another part requires them."""
    return [column for column in columns if not column.endswith("?")]


# ---- columns ----------------------------------------------------------------------------------------------
def fill_columns(
    table: StepTable,
    iteration: Iteration,
    plans: Mapping[str, PassPlan],
    references: Mapping[str, Any],
    *,
    trained: Tensor,
) -> StepTable:
    """Run the passes before the update. Their outputs become columns, NaN on tokens of policies without a plan.

    Args:
        plans: by name of the policy. references: by name of the policy, its frozen reference, if it has one.
        trained: (rows,), 0 on rows of roles that are not trained.
    """
    columns: dict[str, Tensor] = {}
    for name, plan in plans.items():
        if not iteration.acted(name) or not (plan.start or plan.reference):
            continue  # such a policy may have no samples of tokens
        policy, samples = iteration.policies[name], iteration.samples(name)
        if plan.start:
            chosen = _all(samples) if plan.table_reads else _with_tokens(samples, trained[table.token_row] > 0)
            _evaluate(policy, iteration, name, chosen, plan.start, "old", columns, table)
        if plan.reference and name in references:
            _evaluate(references[name], iteration, name, _all(samples), plan.reference, "reference", columns, table)
    if "anchored" in table:  # replayed rows, which are clipped around the behavior policy
        anchored = table["anchored"][table.token_row] > 0
        recomputed = columns.get("logprob_old", torch.full((table.tokens,), torch.nan))
        columns["logprob_old"] = torch.where(anchored, table["logprob_behavior"], recomputed)
    columns |= _of_rows(table, columns)
    return table.replace(**columns) if columns else table


def _all(samples: Samples) -> Sequence[int]:
    return range(len(samples.cost))


def _with_tokens(samples: Samples, tokens: Tensor) -> list[int]:
    """Samples with a response token among these, bool (tokens of the table,)."""
    chosen, start, index = tokens.numpy(), samples.token_start, samples.token_index
    return [i for i in _all(samples) if chosen[index[start[i] : start[i + 1]]].any()]


def _evaluate(
    model: Any,
    iteration: Iteration,
    name: str,
    chosen: Sequence[int],
    outputs: Collection[str],
    suffix: str,
    columns: dict[str, Tensor],
    table: StepTable,
) -> None:
    """One pass over these samples without gradient. Each output fills the column `<output>_<suffix>`."""
    samples = iteration.samples(name)
    wanted = set(outputs) | ({"bootstrap_value"} if "value" in outputs and suffix == "old" else set())
    cuts = dict(enumerate(micro_batches_of(samples, chosen, budget=iteration.token_budget)))
    own = {}
    for piece, counts in iteration.ranks.turns(list(cuts)):
        with torch.no_grad():
            outputs_now = model.forward(samples, cuts[piece], wanted)
        if not counts:
            continue
        end = {} if outputs_now.bootstrap_value is None else {"bootstrap_value": outputs_now.bootstrap_value}
        own[piece] = {**outputs_now.columns, **end}
    for piece, found in sorted(iteration.ranks.exchange(own).items()):
        index, rows = torch.from_numpy(token_index(samples, cuts[piece])), samples.end_row[cuts[piece]]
        for output, values in found.items():
            if output == "bootstrap_value":
                has_next = rows >= 0
                column = _column(columns, output, (len(table),))
                column[torch.from_numpy(rows[has_next])] = values.float().cpu()[torch.from_numpy(has_next)]
            else:
                column = _column(columns, f"{output}_{suffix}", (table.tokens, *values.shape[1:]))
                column[index] = values.float().cpu()


def _column(columns: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    return columns.setdefault(name, torch.full(shape, torch.nan))


def _of_rows(table: StepTable, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of rows from those of tokens: `row_value` is V at the first token, `row_entropy` the mean entropy.

    If an agent was cut off and got no further observation, its `bootstrap_value` is the value at its last token.
    """
    out: dict[str, Tensor] = {}
    end = table["token_count"].cumsum(0)
    if "value_old" in columns:
        out["row_value"] = columns["value_old"][end - table["token_count"]]
        if "truncated" in table:
            found = columns.get("bootstrap_value", torch.full((len(table),), torch.nan))
            out["bootstrap_value"] = torch.where(
                table["truncated"] & found.isnan(), columns["value_old"][end - 1], found
            )
    if "entropy_old" in columns:
        total = torch.zeros(len(table)).index_add_(0, table.token_row, columns["entropy_old"].nan_to_num())
        out["row_entropy"] = total / table["token_count"]
    return out
