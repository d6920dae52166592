"""CANON (arXiv 2509.23962) addresses entropy and response length: a penalty on one of them must decide in advance
which direction is better. CANON splits each group in halves by this metric. It compares a result with the mean of the
other half and with the mean of its own half, so that the results decide which half is preferred. A factor `alpha`
below 1 takes a side, for instance for shorter responses. Here a trajectory alone in its group gets 0, where the
authors' code keeps its raw reward, and their additive `beta` is left out. Their division by the largest length is the
aggregation `constant-length`. This file is the estimator with its schedules for the weight `mu`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.algebra import segment_count, segment_mean, segment_rank, segment_sum, total_return, uniform_per_unit
from palaestra.data import Iteration, Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Columns, Fraction, PositiveInt, register
from palaestra.registry.clashes import Clash, PartPattern

Metric = Literal["entropy", "length", "random"]
Steps = Annotated[int, pydantic.Field(ge=0)]


@register(
    "advantage",
    "canon",
    ignores_if={
        "schedule=fixed": ("low", "high", "steps", "warmup", "cycles"),
        "schedule=accuracy": ("mu", "low", "high", "steps", "warmup", "cycles"),
        "schedule=failure": ("mu", "low", "high", "steps", "warmup", "cycles"),
        "schedule=falling": ("mu",),
        "schedule=rising": ("mu",),
    },
    reads=(),
    reads_if={
        "metric=entropy": ("row_entropy",),
        "schedule=accuracy": ("outcome", "truncated?"),
        "schedule=failure": ("outcome", "truncated?"),
    },
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2509.23962",
    clashes=(
        Clash(
            other=PartPattern(slot="advantage", names=("whiten",)),
            why="Dividing by a deviation removes the difference between the two halves of a group.",
            ways="Leave `whiten` out; to change the scale, set the learning rate.",
        ),
        Clash(
            other=PartPattern(slot="advantage", options={"scale": ("std",)}),
            why="Dividing by a deviation removes the difference between the two halves of a group.",
            ways="Set `scale: none`.",
        ),
    ),
)
def canon(
    table: StepTable,
    iteration: Iteration,
    *,
    metric: Metric = "entropy",
    alpha: Fraction = 1.0,
    mu: Fraction = 0.5,
    schedule: Literal["fixed", "accuracy", "failure", "falling", "rising"] = "fixed",
    low: Fraction = 0.0,
    high: Fraction = 0.6,
    steps: PositiveInt = 150,
    warmup: Steps = 30,
    cycles: PositiveInt = 3,
    by: Columns = ("group",),
) -> Float[Tensor, " rows"]:
    """Compare a trajectory with the other half of its group, and with its own half.

        low = the floor(n / 2) trajectories of least x, high = the others;   m_lo, m_hi: their mean returns
        across:  high: R_i − alpha · m_lo,   low: alpha · R_i − m_hi          metric entropy, random
                 high: alpha · R_i − m_lo,   low: R_i − alpha · m_hi          metric length
        inside:  R_i − mean return of its own half
        A_i = mu · across + (1 − mu) · inside

    The results decide which half is better: if long trajectories succeed more often, they get more. For an even group,
    mu ½ and alpha 1 this is Dr. GRPO. Do not divide by a deviation; the authors' division by the largest length is the
    aggregation `constant-length`.

    Args:
        table: columns group, trajectory, reward (rows,); row_entropy or outcome (rows,) where they are read.
        metric: x of a trajectory. "entropy": mean of its tokens' entropies. "length": its number of tokens, or of steps
            where a step is one token. "random": one draw per trajectory from the iteration's seed, as a control.
        alpha: in [0, 1], a factor that favors high entropy or short responses. Lower: favors them more. 1 favors
            neither half. Usual: 1; 0.9 to shorten.
        mu: in [0, 1], weight of the comparison across halves. Higher: the better half as a whole gets more. Usual: 0.5.
        schedule: "fixed": mu. "accuracy": the mean outcome of the batch; "failure": 1 − that. "falling", "rising": a
            cosine from `high` to `low`, or back, that restarts. Only "fixed" reads `mu`.
        low, high: range of the cosine, in [0, 1].
        steps: iterations of the whole schedule; afterwards the weight stays at its last value.
        warmup: iterations before the first cycle, in which the weight moves linearly from `low` to `high` ("rising":
            from `high` to `low`).
        cycles: how often the cosine runs in the iterations between `warmup` and `steps`.
        by: columns whose equal values make trajectories peers.

    Ties of x are ordered by the names of trajectories, shorter names first. A trajectory alone in its group gets 0.

    Returns: float32 (rows,), the same number on each row of a trajectory; 0 on padding.
    Metrics: canon/mu, the weight of this iteration.
    Raises: MissingColumn, without entropies or outcomes where they are read; InvalidData, if no group has two
        trajectories; RecipeError, for alpha below 1 with random halves, or a schedule without room for its cycles.
    Differs from the authors' code: a trajectory alone gets 0, theirs its raw reward; there is no additive `beta`.
    """
    _refuse_options(metric=metric, alpha=alpha, low=low, high=high, room=steps - warmup, cycles=cycles)
    if schedule in ("accuracy", "failure"):
        accuracy = _accuracy(table)
        mu = accuracy if schedule == "accuracy" else 1 - accuracy
    elif schedule in ("falling", "rising"):
        value = cosine(iteration.number, low=low, high=high, steps=steps, warmup=warmup, cycles=cycles)
        mu = value if schedule == "falling" else low + high - value
    iteration.metrics["canon/mu"] = mu
    return _credit(table, table.key(*by), metric=metric, alpha=alpha, mu=mu, seed=iteration.seed)


def _credit(
    table: StepTable, key: Key, *, metric: Metric, alpha: float, mu: float, seed: int
) -> Float[Tensor, " rows"]:
    pair = key & table.key("trajectory")
    counts = Key(pair.codes, pair.size, (), (table.row_weight > 0).double())
    group = torch.zeros(pair.size, dtype=torch.int64).index_copy_(0, pair.codes, key.codes)
    present = segment_count(by=counts) > 0
    returns = segment_mean(total_return(table), by=counts)
    half, size = _halves(table, counts, Key(group, key.size, (), present.double()), metric=metric, seed=seed)
    means = segment_mean(returns, by=Key(2 * group + half, 2 * key.size, (), present.double()))
    other, mean = means[2 * group + (1 - half)], means[2 * group + half]
    favored = (half == 0) if metric == "length" else (half == 1)
    across = torch.where(favored, returns - alpha * other, alpha * returns - other)
    credit = mu * across + (1 - mu) * (returns - mean)
    if not bool((size[group][present] > 1).any()) and bool(present.any()):
        raise InvalidData(
            where="advantage: canon",
            what="no group has two trajectories, so there are no halves to compare.",
            remedy="Sample at least 2 trajectories per task (`rollout.group`).",
        )
    credit = torch.where(size[group] > 1, credit, 0.0)[pair.codes]
    return torch.where(table.row_weight > 0, credit, 0.0).float()


def cosine(number: int, *, low: float, high: float, steps: int, warmup: int, cycles: int) -> float:
    """mu of iteration `number` under the schedule "falling"; "rising" mirrors it between `low` and `high`."""
    if number < warmup:
        return low + (high - low) * number / warmup
    if number >= steps:
        return low
    length = (steps - warmup) / cycles
    place = (number - warmup) / length % 1.0
    return low + (high - low) * (1 + math.cos(math.pi * place)) / 2


def _halves(
    table: StepTable, counts: Key, groups: Key, *, metric: Metric, seed: int
) -> tuple[Int[Tensor, " n"], Float[Tensor, " g"]]:
    """The half of each trajectory, 0 (low) or 1 (high), and the number of trajectories of each group."""
    size = segment_count(by=groups)
    order = torch.argsort(_metric(table, counts, metric, seed)[(named := _by_name(table, counts))], stable=True)
    place = torch.empty_like(order).index_copy_(0, named[order], torch.arange(len(order)))
    absent = groups.weights == 0
    rank = segment_rank(torch.where(absent, len(place), place), by=groups)  # trajectories that do not count come last
    return (rank >= (size // 2)[groups.codes]).long(), size


def _metric(table: StepTable, counts: Key, metric: Metric, seed: int) -> Float[Tensor, " n"]:
    """x of each trajectory, rounded so that the order of summation cannot decide a tie."""
    tokens = segment_sum(table["token_count"], by=counts)
    if metric == "length":
        return tokens
    if metric == "random":
        draws = uniform_per_unit(table, ("trajectory",), seed=seed, purpose="canon")
        return torch.zeros(counts.size, dtype=torch.float64).index_copy_(0, counts.codes, draws)
    entropy = torch.where(counts.weights > 0, table["row_entropy"], 0.0).double() * table["token_count"]
    return ((segment_sum(entropy, by=counts) / tokens.clamp_min(1)) * 2**20).round()


def _by_name(table: StepTable, counts: Key) -> Int[Tensor, " n"]:
    """Indices of trajectories sorted by name, shorter names first, so that the order of rows has no influence."""
    names = [str(label) for label in table.labels("trajectory")]
    ranked = torch.tensor(sorted(range(len(names)), key=lambda code: (len(names[code]), names[code])))
    rank = torch.empty_like(ranked).index_copy_(0, ranked, torch.arange(len(names)))
    found = torch.zeros(counts.size, dtype=torch.int64).index_copy_(0, counts.codes, rank[table["trajectory"]])
    return torch.argsort(found, stable=True)


def _accuracy(table: StepTable) -> float:
    """Mean outcome of the trajectories, each counted once; one that a limit cut off unjudged has failed."""
    whole = table.key("trajectory")
    counts = Key(whole.codes, whole.size, (), (table.row_weight > 0).double())
    present = segment_count(by=counts) > 0
    found = segment_mean(torch.where(counts.weights > 0, outcomes_of(table), 0.0), by=counts)[present]
    if not bool(((found >= 0) & (found <= 1)).all()):
        raise InvalidData(
            where="advantage: canon",
            what="an outcome is missing or outside [0, 1], so that the mean outcome is not an accuracy.",
            remedy="Let the environment give `success`, or use `schedule: fixed`.",
        )
    return float(found.mean()) if len(found) else 0.0


def _refuse_options(*, metric: str, alpha: float, low: float, high: float, room: int, cycles: int) -> None:
    if metric == "random" and alpha != 1:
        raise RecipeError(
            where="advantage: canon",
            what=f"`alpha: {alpha:g}` favors one half, but random halves do not differ.",
            remedy="Remove `alpha`, or choose another `metric`.",
        )
    if room < cycles or low > high:
        fault = f"{room} iterations after the warm-up" if room < cycles else f"a range of {low:g} to {high:g}"
        raise RecipeError(
            where="advantage: canon",
            what=f"a cosine of {cycles} cycles has {fault}.",
            remedy="Set `steps` to at least `warmup` + `cycles`, and `low` to at most `high`.",
        )
