"""BNPO (arXiv 2506.02864) addresses the scale of group-relative advantages: no fixed divisor suits both easy and hard
tasks. It fits a Beta distribution to the success rates of the groups of a batch. It then divides the centered result
by another Beta density at the task's own rate, chosen to minimize the variance of the gradient. Dr. GRPO and, up to a
factor, GRPO are special cases. Here the density has a floor of 0.1 (theirs is 1e-6), a trajectory alone in its group
stays out of the fit (theirs counts as a rate of 0), and rates that are all equal give Dr. GRPO (theirs divides by
zero). This file is the estimator.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import segment_count, segment_mean, segment_sum, standardize, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Columns, Positive, register

Shape = tuple[Positive, Positive]
SLACK = 1e-6  # tolerance for float32 sums of rewards at the ends of the range


@register(
    "advantage",
    "bnpo",
    reads=("outcome?", "truncated?"),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2506.02864",
)
def bnpo(
    table: StepTable,
    *,
    minimum: float = 0.0,
    maximum: float = 1.0,
    rewards: Columns = ("return",),
    shape: Shape | None = None,
    floor: Positive = 0.1,
    by: Columns = ("group",),
) -> Float[Tensor, " rows"]:
    """Divide a trajectory's result minus its group's mean by a density that is high where success rates are frequent.

        x_i = (R_i − minimum) / (maximum − minimum)          p = mean of x over the group
        A_i = (x_i − p) / max(f(p), floor)                   f = density of Beta(α, β)
        α = max(1, 1 + a / 3),   β = max(1, 1 + b / 3)
        a = k m,   b = k (1 − m),   k = m (1 − m) / v − 1     m, v = mean and sample variance of p over all groups

    (a, b) is the Beta distribution of the rates p, fitted by moments. If the rates follow it, Beta(1 + a/3, 1 + b/3)
    gives the least variance of the normalized gradient of all Beta densities. (1, 1) is Dr. GRPO, (3/2, 3/2) is GRPO
    times π/8 for results of 0 and 1. Where nothing can be fitted (one group, or k not positive) it is (1, 1).

    Args:
        table: columns group, trajectory, reward, each (rows,), and those of `rewards`.
        minimum, maximum: range of the results.
        rewards: results that are estimated one by one, each with its own density, and averaged: "return", the sum of
            rewards; "outcome", which is `minimum` for a trajectory that a limit cut off unjudged; or a column whose sum
            over a trajectory is a result.
        shape: (α, β), in place of the fitted values.
        floor: > 0, least density. Higher: groups with a rare success rate count less. With 1e-6, one success of a hard
            task can weigh a million times as much as others. Usual: 0.1.
        by: columns whose equal values make trajectories peers.

    Returns: float32 (rows,); 0 for a trajectory that is alone in its group, which is also left out of the fit.
    Raises: RecipeError, for an empty range or no result; InvalidData, for a result outside the range, or if no group
        has two trajectories; MissingColumn.
    Differs from the authors' code: the floor is 0.1, not 1e-6; lone trajectories are left out of the fit, theirs count
        as a rate of 0; if all rates are equal it is (1, 1), theirs divides by zero.
    """
    if minimum >= maximum or not rewards:
        raise RecipeError(
            where="advantage: bnpo",
            what=f"the range of results, {minimum:g} to {maximum:g}, is empty." if rewards else "`rewards` is empty.",
            remedy="Set `minimum` below `maximum`: the worst and the best result." if rewards else "Usual: [return].",
        )
    total = torch.zeros(len(table), dtype=torch.float64)
    for name in rewards:
        result = (_result(table, name, minimum).double() - minimum) / (maximum - minimum)
        _refuse_outside(name, result, table.row_weight > 0, minimum, maximum)
        total += _one(result, table, shape=shape, floor=floor, by=by)
    return (total / len(rewards)).float()


def _one(result: Tensor, table: StepTable, *, shape: Shape | None, floor: float, by: Columns) -> Float[Tensor, " rows"]:
    """The advantage of one result, float64."""
    key = table.key(*by)
    centered = standardize(result.float(), by=key, unit=table.unit("trajectory"), need_peers=True)
    members, values = _members(result, key, table)
    several = segment_count(by=members) > 1
    rate = segment_mean(values, by=members)
    alpha, beta = _shape(rate[several]) if shape is None else shape
    density = beta_density(rate, alpha, beta).clamp_min(floor)
    return centered.double() / density[key.codes]


def _result(table: StepTable, name: str, minimum: float) -> Float[Tensor, " rows"]:
    """One number per trajectory, on each of its rows."""
    if name == "return":
        return total_return(table)
    if name == "outcome":
        return outcomes_of(table, cut=minimum)
    whole = table.key("trajectory")
    counts = Key(whole.codes, whole.size, (), (table.row_weight > 0).double())
    return segment_sum(torch.where(table.row_weight > 0, table[name], 0.0), by=counts)[whole.codes]


def _members(result: Tensor, key: Key, table: StepTable) -> tuple[Key, Tensor]:
    """The trajectories of each group, each once, and their results; those whose rows all have weight 0 do not count."""
    pair = key & table.key("trajectory")
    sets = torch.zeros(pair.size, dtype=torch.int64).index_copy_(0, pair.codes, key.codes)
    counts = Key(pair.codes, pair.size, (), (table.row_weight > 0).double())
    present = (segment_count(by=counts) > 0).double()
    return Key(sets, key.size, (), present), segment_mean(torch.where(counts.weights > 0, result, 0.0), by=counts)


def _shape(rate: Float[Tensor, " groups"]) -> tuple[float, float]:
    """(α, β) by the moments of the rates; (1, 1) where they cannot be fitted."""
    if len(rate) < 2:
        return 1.0, 1.0
    mean, variance = float(rate.mean()), float(rate.var(correction=1))
    certain = mean * (1 - mean)
    if variance <= 1e-12 or variance >= certain:
        return 1.0, 1.0
    size = certain / variance - 1
    return max(1.0, 1 + size * mean / 3), max(1.0, 1 + size * (1 - mean) / 3)


def beta_density(rate: Float[Tensor, " n"], alpha: float, beta: float) -> Float[Tensor, " n"]:
    """Density of Beta(alpha, beta), float64; 1 at rates of 0 and 1, where every result equals the mean."""
    inside = (rate > 0) & (rate < 1)
    p = torch.where(inside, rate.double(), 0.5)
    a, b = torch.tensor(float(alpha)).double(), torch.tensor(float(beta)).double()
    constant = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    return torch.where(inside, torch.exp((a - 1) * p.log() + (b - 1) * torch.log1p(-p) - constant), 1.0)


def _refuse_outside(name: str, result: Tensor, counts: Bool[Tensor, " rows"], minimum: float, maximum: float) -> None:
    bad = (counts & ~((result >= -SLACK) & (result <= 1 + SLACK))).nonzero()  # NaN is outside too
    if len(bad):
        row = int(bad[0, 0])
        found = float(result[row]) * (maximum - minimum) + minimum
        raise InvalidData(
            where=f"advantage: bnpo, `{name}`, row {row}",
            what=f"a result is {found:g}, outside {minimum:g} to {maximum:g}, so that its group has no success rate.",
            remedy="Set `minimum` and `maximum` to the worst and the best result of a trajectory.",
        )
