"""E-GRPO (arXiv 2510.24694) trains search agents on synthetic questions. If only a right answer is paid, an attempt
that came near earns as little as one that found nothing. The construction of such questions also yields the entities on
the way to the answer. A wrong but well-formed answer therefore earns a part of the reward, in proportion to the
entities that the agent named, relative to the best of its group. GRPO uses these rewards. Here an answer is malformed
if an act could not be read or a limit cut the episode off. Synthesis of questions and real search are not here. This
file is the reward; the estimator is `grpo` in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Columns, register

Part = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register(
    "reward",
    "entity_credit",
    reads=("outcome", "invalid?", "truncated?"),
    reads_if={"column=entities": ("entities",)},
    writes=("reward", "entity_credit"),
    uses=("group",),
    source="arXiv 2510.24694",
)
def entity_credit(
    table: StepTable,
    *,
    alpha: Part = 0.3,
    column: str = "entities",
    malformed: Columns = ("invalid", "truncated"),
    by: Columns = ("group",),
) -> dict[str, Float[Tensor, " rows"]]:
    """Pay 1 for a success, and a failure in proportion to the entities it named, relative to the best of its group.

        g_i = share of the gold entities that the agent itself named        ĝ_i = g_i / max of g over the group
        R_i = 1 for success;   alpha · ĝ_i for a well-formed failure;   0 for a malformed one

    So trajectories of a group that fails altogether still differ. ĝ is 0 if no trajectory of the group named an entity.

    Args:
        table: columns group, trajectory, turn; outcome (rows,), 1 for a success, and a failure where a limit cut the
            trajectory off unjudged; the share of entities (rows,), of which the largest of a trajectory counts, so that
            it may grow from step to step.
        alpha: in [0, 1). Higher: failures that came near earn more. 0: only success pays. Usual: 0.3.
        column: the column with the shares.
        malformed: columns that make a trajectory malformed where a row is not 0: unreadable acts, or a limit that cut
            it off. A column that the table lacks is skipped.
        by: columns whose equal values make trajectories peers.

    Returns: "reward" (rows,): R on the last row of each trajectory, 0 on others; "entity_credit" (rows,): ĝ.
    Raises: MissingColumn, without shares or outcomes; InvalidData, where one of them is missing or outside [0, 1].
    """
    counts, whole = table.row_weight > 0, table.key("trajectory")
    own = Key(whole.codes, whole.size, (), counts.double())
    share = _largest(_checked(table, column, table[column], counts), whole, counts)
    outcome = _checked(table, "outcome", outcomes_of(table), counts)
    solved = _largest(outcome, whole, counts) >= 1
    key = table.key(*by)
    best = _largest(share[whole.codes], key, counts)[key.codes]
    rate = torch.where(best > 0, share[whole.codes] / best.clamp_min(1e-300), 0.0)
    broken = sum((segment_sum((table[name] != 0).double(), by=own) for name in malformed if name in table), 0.0)
    partial = torch.where(torch.as_tensor(broken > 0).expand(whole.size)[whole.codes], 0.0, alpha * rate)
    result = torch.where(solved[whole.codes], 1.0, partial)
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last) & counts
    return {
        "reward": torch.where(ends, result, 0.0).float(),
        "entity_credit": torch.where(counts, rate, 0.0).float(),
    }


def _largest(values: Tensor, by: Key, counts: Bool[Tensor, " rows"]) -> Float[Tensor, " sets"]:
    """The largest value of each set over rows with weight, at least 0: float64 (sets,)."""
    most = torch.zeros(by.size, dtype=torch.float64)
    return most.scatter_reduce(0, by.codes[counts], values.double()[counts], "amax")


def _checked(
    table: StepTable, name: str, column: Float[Tensor, " rows"], counts: Bool[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    column = column.double()
    bad = (counts & ~((column >= 0) & (column <= 1))).nonzero()  # NaN is outside too
    if len(bad):
        row = int(bad[0, 0])
        missing = bool(column[row].isnan())
        raise InvalidData(
            where=f"reward: entity_credit, `{name}`, row {row}",
            what="it is missing." if missing else f"it is {float(column[row]):g}, outside [0, 1].",
            remedy="Compute the share with `palaestra.data.named_share`; leave out tasks without gold entities."
            if name != "outcome"
            else "Let the environment give `success` in its `info`.",
        )
    return column
