"""The reward `token_budget`: a penalty for trajectories with more tokens than the budget of their kind of task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import Key, StepTable
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, PositiveInt, register


@register(
    "reward",
    "token_budget",
    reads=(),
    reads_if={"by=stratum": ("stratum?",), "by=game": ("game?",), "by=team": ("team?",)},
    writes=("reward", "token_budget"),
    source="arXiv 2507.20534",
)
def token_budget(
    table: StepTable,
    *,
    budget: PositiveInt | None = None,
    budgets: Mapping[str, PositiveInt] = {},
    by: str = "stratum",
    penalty: NonNegative = 1.0,
) -> dict[str, Float[Tensor, " rows"]]:
    """reward − penalty on the last row of a trajectory with more response tokens than its budget.

    The penalty is flat. A trajectory within its budget pays nothing, so the policy has no reason to be shorter than
    that.

    Args:
        table: columns trajectory, turn, reward, token_count, each (rows,); with `budgets` also the column `by` of
            labels.
        budget: tokens for a trajectory whose kind is not in `budgets`; None: those have no budget, which is refused
            where `budgets` is empty too.
        budgets: kind of task → tokens. The environment gives the kind in the trajectory's `info`.
        by: the column of kinds: stratum, game or team.
        penalty: ≥ 0. Higher: shorter responses. Usual: as much as success pays, 1.

    Returns: "reward" (rows,), and "token_budget" (rows,): −penalty where a budget was exceeded, else 0.
    Raises: RecipeError, without any budget; MissingColumn, with `budgets` and no column of kinds.
    """
    if budget is None and not budgets:
        raise RecipeError(
            where="reward: token_budget",
            what="neither `budget` nor `budgets` is set, so no trajectory has a budget.",
            remedy="Give `budget: 200`, or `budgets: {short: 50, long: 200}` by kind of task.",
        )
    counts, key = table.row_weight > 0, table.key("trajectory")
    length = segment_sum(table["token_count"], by=Key(key.codes, key.size, (), counts.double()))[key.codes]
    passed = length > _budget(table, budget, budgets, by)
    order, last = table.timeline("trajectory")
    ends = torch.zeros(len(table), dtype=torch.bool).index_copy_(0, order, last) & counts
    price = torch.where(ends & passed, -penalty, 0.0).float()
    return {"reward": table["reward"] + price, "token_budget": price}


def _budget(table: StepTable, budget: int | None, budgets: Mapping[str, int], by: str) -> Tensor:
    """The budget of each row's trajectory, float64 (rows,); infinity for none."""
    free = torch.inf if budget is None else float(budget)
    if not budgets:
        return torch.full((len(table),), free, dtype=torch.float64)
    kinds = table[by]
    own = [float(budgets.get(str(label), free)) for label in table.labels(by)]
    known = torch.tensor([*own, free], dtype=torch.float64)
    return known[kinds]  # a row without a label has code −1: the last entry
