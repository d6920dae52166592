"""rStar2-Agent (arXiv 2508.20722) trains reasoning with a code tool under a reward of 0 or 1. Calls often fail, and a
success after many failed calls is rewarded like a clean one. GRPO-RoC samples twice as many trajectories as it trains
on. It keeps all kinds of failures, and the successes with the fewest tool errors and repeated answers; the reward does
not change. By default the successes with the smallest penalty are kept, as in the public code; `mode: sample` draws
them by weights, as in the paper. The service that runs code, the supervised start and the stages of growing response
length are not here. This file is the selection; the estimator is `grpo` in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.algebra import segment_count, segment_sum
from palaestra.data import Iteration, Key, StepTable, derive
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Positive, PositiveInt, register
from palaestra.registry.clashes import Clash, PartPattern

WHERE = "selection: resample_on_correct"
NO_CALL = 0.5  # the share of errors of a trajectory without calls
COUNTED = {"calls": "tool_call", "errors": "tool_error", "answers": "answer"}  # argument of `tool_penalty` → column
Count = Annotated[int, pydantic.Field(ge=0)]


@register(
    "selection",
    "resample_on_correct",
    reads=("outcome", "tool_call", "tool_error", "answer", "truncated?"),
    writes=("row_weight",),
    uses=("group",),
    source="arXiv 2508.20722, public code",
    clashes=(
        Clash(
            other=PartPattern(slot="selection", names=("constant_groups", "widest_groups", "resample_on_correct")),
            ordered=True,
            why="Both choose trajectories of a group, and after resampling a group is more uniform than it was.",
            ways="Drop groups first, then resample: write `resample_on_correct` once, and last.",
        ),
    ),
)
def resample_on_correct(
    table: StepTable,
    iteration: Iteration,
    *,
    keep: PositiveInt = 16,
    mode: Literal["lowest", "sample"] = "lowest",
    least_failures: Count = 2,
    least_successes: Count = 2,
    softness: Positive = 0.1,
) -> Bool[Tensor, " rows"]:
    """Keep `keep` trajectories of each group before advantages are computed; rewards do not change.

        p   = errors / calls + min((answers − 1) / turns, 1)         1/2 in place of the first without calls,
                                                                      1 in place of the second without an answer
        n₀  = failures · keep / n, rounded, n₁ = keep − n₀            each at least its minimum, as far as there are any

    First, groups in which all trajectories ended alike are removed, and groups of fewer than `keep`. Then n₁ successes
    and n₀ failures stay: with "lowest" the successes of least p and the first failures, with "sample" successes drawn
    with weights 1 / (p + softness) and failures drawn evenly, without replacement. If no group is left, one group that
    ended alike stays, in which all advantages are 0. A trajectory that a limit cut off unjudged is a failure.

    Args:
        table: columns group, trajectory, outcome (rows,); tool_call, tool_error, answer (rows,), counts of each act, 0
            where a column is absent.
        keep: number of trajectories that stay in each group, half of `rollout.group`. Usual: 16.
        mode: "lowest", as in the public code; "sample", as in the paper.
        least_failures, least_successes: smallest numbers of failures and successes that stay. Usual: 2.
        softness: > 0, of "sample". Lower: successes with a small penalty are more likely to stay. Usual: 0.1.

    Returns: bool (rows,); all true with `keep` as large as the group and no group that ended alike. A trajectory whose
        rows all have weight 0 is not a member of its group.
    Metrics: resample/groups, the share of groups that were resampled; resample/penalty and resample/penalty_kept, the
        mean p of their successes before and after, left out where there is none.
    Raises: RecipeError, if the minima are more than `keep`; InvalidData, if every group is smaller than `keep`, or a
        trajectory has no outcome of 0 or 1.
    """
    if least_failures + least_successes > keep:
        raise RecipeError(
            where=WHERE,
            what=f"`least_failures: {least_failures}` and `least_successes: {least_successes}` sum to more than "
            f"`keep: {keep}`.",
            remedy="Lower the minima, or raise `keep`.",
        )
    groups = _groups(table)
    large = {name: codes for name, codes in groups.items() if len(codes) >= keep}
    if groups and not large:
        raise InvalidData(
            where=WHERE,
            what=f"`keep: {keep}` is more than the largest group has ({max(map(len, groups.values()))}).",
            remedy=f"Set rollout.group={2 * keep}, twice `keep`.",
        )
    right = _right(table, [code for codes in large.values() for code in codes])
    mixed = {name: codes for name, codes in large.items() if right[codes].any() and not right[codes].all()}
    before = [code for codes in mixed.values() for code in codes]
    penalty = _penalties(table, before)
    kept: list[int] = []
    for name, codes in mixed.items():
        draw = np.random.default_rng(derive(iteration.seed, "resample", name)) if mode == "sample" else None
        minima = (least_failures, least_successes)
        places = resample(right[codes], penalty[codes], keep=keep, minima=minima, softness=softness, draw=draw)
        kept += [codes[place] for place in places]
    if groups:
        iteration.metrics["resample/groups"] = len(mixed) / len(groups)
    for metric, codes in (("penalty", before), ("penalty_kept", kept)):
        if right[codes].any():
            iteration.metrics[f"resample/{metric}"] = float(np.mean(penalty[codes][right[codes]]))
    if large and not kept:
        kept = next(iter(large.values()))[:keep]
    return torch.isin(table["trajectory"], torch.tensor(kept, dtype=torch.int64))


# ---- numbers ----------------------------------------------------------------------------------------------
def tool_penalty(*, calls: float, errors: float, answers: float, turns: float) -> float:
    """p of one trajectory, in [0, 2]: its share of failed calls plus its repeated answers.

    Raises: InvalidData, for negative counts, more errors than calls, or no turn.
    """
    if not (0 <= errors <= calls and answers >= 0 and turns > 0):
        raise InvalidData(
            where=WHERE,
            what=f"impossible counts: {calls:g} calls, {errors:g} errors, {answers:g} answers in {turns:g} turns.",
            remedy="Let the environment give `tool_call`, `tool_error` and `answer` of each act.",
        )
    failed = errors / calls if calls else NO_CALL
    return failed + (min((answers - 1) / turns, 1.0) if answers else 1.0)


def quotas(failures: int, successes: int, *, keep: int, minima: tuple[int, int]) -> tuple[int, int]:
    """The numbers of failures and successes that stay: `keep` in all, halves rounded in favor of failures."""
    n0 = math.floor(failures * keep / (failures + successes) + 0.5)
    least0, least1 = min(minima[0], failures), min(minima[1], successes)
    n0 = max(n0, least0)
    n1 = max(keep - n0, least1)
    return keep - n1, n1


def resample(
    right: np.ndarray,
    penalty: np.ndarray,
    *,
    keep: int,
    minima: tuple[int, int] = (2, 2),
    softness: float = 0.1,
    draw: np.random.Generator | None = None,
) -> list[int]:
    """The sorted indices of the trajectories that stay.

    Args:
        right: bool (n,), successes.
        penalty: float (n,), read for successes only.
        keep: number of trajectories that stay.
        minima: smallest numbers of failures and successes.
        softness: > 0; see `resample_on_correct`.
        draw: None keeps the successes of least penalty and the first failures; a generator draws both.

    Raises: InvalidData, if `keep` is more than n.
    """
    if keep > len(right):
        raise InvalidData(
            where=WHERE,
            what=f"`keep: {keep}` is more than the {len(right)} trajectories of the group.",
            remedy="Lower `keep`, or raise rollout.group.",
        )
    failures, successes = np.flatnonzero(~right), np.flatnonzero(right)
    n0, n1 = quotas(len(failures), len(successes), keep=keep, minima=minima)
    if draw is None:
        best = successes[np.argsort(penalty[successes], kind="stable")]
        return sorted([*failures[:n0].tolist(), *best[:n1].tolist()])
    weight = 1 / (penalty[successes] + softness)
    drawn = draw.choice(successes, n1, replace=False, p=weight / weight.sum()) if n1 else successes[:0]
    return sorted([*draw.choice(failures, n0, replace=False).tolist(), *drawn.tolist()])


# ---- trajectories -----------------------------------------------------------------------------------------
def _groups(table: StepTable) -> dict[str, list[int]]:
    """The trajectories (codes) of each group in the order of their names, shorter names first."""
    counts = table.row_weight > 0
    pairs = set(zip(table["group"][counts].tolist(), table["trajectory"][counts].tolist(), strict=True))
    groups, trajectories = table.labels("group"), [str(label) for label in table.labels("trajectory")]
    named = sorted((str(groups[g]), len(trajectories[t]), trajectories[t], t) for g, t in pairs)
    found: dict[str, list[int]] = {}
    for group, _, _, code in named:
        found.setdefault(group, []).append(code)
    return found


def _right(table: StepTable, codes: Sequence[int]) -> np.ndarray:
    """Whether each trajectory ended with an outcome of 1: bool (trajectories,), checked for `codes`.

    Raises: InvalidData, for one of `codes` whose outcome is neither 0 nor 1.
    """
    outcome = np.full(len(table.labels("trajectory")), math.nan)
    outcome[table["trajectory"].numpy()] = outcomes_of(table).numpy()
    for code in codes:
        if outcome[code] not in (0.0, 1.0):
            found = "none" if math.isnan(outcome[code]) else f"{outcome[code]:g}"
            raise InvalidData(
                where=f"{WHERE}, trajectory {table.labels('trajectory')[code]}",
                what=f"its outcome is {found}, neither 0 nor 1.",
                remedy="Let the environment give `success` in its info.",
            )
    return np.asarray(outcome == 1)


def _penalties(table: StepTable, codes: Sequence[int]) -> np.ndarray:
    """p of each trajectory of `codes`, NaN elsewhere: float64 (trajectories,)."""
    key = Key(table["trajectory"], len(table.labels("trajectory")))
    sums = {
        name: segment_sum(table[column], by=key) if column in table else torch.zeros(key.size)
        for name, column in COUNTED.items()
    }
    turns = segment_count(by=key)
    penalty = np.full(key.size, math.nan)
    for code in codes:
        counts = {name: float(total[code]) for name, total in sums.items()}
        penalty[code] = tool_penalty(**counts, turns=float(turns[code]))
    return penalty
