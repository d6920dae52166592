"""VITAL (arXiv 2508.04416) trains a model that reasons about videos with tools, on several families of tasks at once.
Easy families then dominate the update. DGRPO weights GRPO's advantages by difficulty: a family with low results in
its running mean weighs more, and so does a group that fails often. Here the weight multiplies the advantage and not
the reward, since standardization would cancel a common factor. There is no public code and the paper names no
functions, so the form of both weights is ours. Video tools, temporal grounding and the supervised stages are not
here. This file is the weight; the estimator is `grpo` in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.algebra import segment_count, segment_mean, total_return
from palaestra.data import Batch, Key, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import cut_off, outcomes_of
from palaestra.registry import Fraction, Positive, register

UNKNOWN = ""  # the family of trajectories that were cut off, in a group without a family
SLACK = 1e-6  # tolerance for float32 sums of rewards at the ends of [0, 1]


@register(
    "weights",
    "difficulty",
    reads=(),
    reads_if={"column=outcome": ("outcome", "truncated?"), "family=stratum": ("stratum?", "truncated?")},
    writes=("weight", "counts"),
    uses=("group",),
    source="arXiv 2508.04416",
)
class Difficulty(StatefulPart):
    """The weight of DGRPO: the difficulty of the family times the difficulty of the task.

        a_k ← momentum · a_k + (1 − momentum) · mean result of family k in this batch      (at first: that mean)
        w_family = mean of a over all families so far / a_k, clipped to [low, high]
        w_task = 1 + hard · (1 − p)                                        p = mean result of the group
        w = w_family · w_task

    It multiplies the advantage, not the reward: an estimator that divides by the group's deviation cancels a common
    factor of its rewards.

    Args:
        column: the result, in [0, 1]: "return", the sum of rewards; "outcome", 0 for a trajectory that a limit cut off
            unjudged; or another column with one number per trajectory, such as an overlap of intervals.
        family: a column with the name of a task's family. None: all tasks are of one family, of weight 1. A trajectory
            that a limit cut off before its family was given has that of its group; if its group has none, w_family is
            1 and its result is not in the means.
        known: the allowed names of families; empty: any name.
        momentum: in [0, 1]. Higher: weights change more slowly. 1 keeps the first means. Usual: 0.9.
        low, high: bounds of w_family, 0 < low ≤ high. Both 1: all families weigh the same. Usual: 0.5 and 2.
        hard: in [0, 1]. Higher: tasks that fail weigh more, at most 1 + hard. 0: all tasks weigh the same. Usual: 1.

    Returns: float32 (rows,); with low = high = 1 and hard 0 exactly 1.
    Raises: MissingColumn, without families or results; InvalidData, for a result outside [0, 1], or for a trajectory
        without a family, of an unknown one or of several; RecipeError, for low above high.
    Differs from the authors' code: there is none to compare with, and the paper names no functions; these are ours.
    """

    def __init__(
        self,
        *,
        column: str = "return",
        family: str | None = "stratum",
        known: tuple[str, ...] = (),
        momentum: Fraction = 0.9,
        low: Positive = 0.5,
        high: Positive = 2.0,
        hard: Fraction = 1.0,
    ) -> None:
        if low > high:
            raise RecipeError(
                where="weights: difficulty",
                what=f"`low: {low:g}` is above `high: {high:g}`.",
                remedy="Set `low` to at most `high`. Usual: 0.5 and 2.",
            )
        self.column, self.family, self.known = column, family, known
        self.momentum, self.low, self.high, self.hard = momentum, low, high, hard
        self.means: dict[str, float] = {}

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        result, counts = self._result(table), table.row_weight > 0
        whole, key = table.key("trajectory"), table.key("group")
        rows = Key(whole.codes, whole.size, (), counts.double())
        present = (segment_count(by=rows) > 0).double()
        results = segment_mean(torch.where(counts, result.double(), 0.0), by=rows)
        codes, names = self._families(table, whole, counts)
        self._remember(names, results, Key(codes, len(names), (), present))
        family = torch.tensor([self.weight(name) for name in names], dtype=torch.float64)
        group = torch.zeros(whole.size, dtype=torch.int64).index_copy_(0, whole.codes, key.codes)
        rate = segment_mean(results, by=Key(group, key.size, (), present))
        weight = family[codes] * (1 + self.hard * (1 - rate[group]))
        return torch.where(counts, weight[whole.codes], 1.0).float()

    def weight(self, family: str) -> float:
        """w of a family by the running means; `high` if it never succeeded, 1 if it was never played."""
        if family not in self.means:
            return 1.0
        mean = sum(self.means.values()) / len(self.means)
        own = self.means[family]
        return min(max(mean / own, self.low), self.high) if own > 0 else self.high if mean > 0 else 1.0

    def _remember(self, names: list[str], results: Tensor, by: Key) -> None:
        means, seen = segment_mean(results, by=by), segment_count(by=by) > 0
        for code in sorted(seen.nonzero()[:, 0].tolist(), key=lambda code: names[code]):
            if names[code] == UNKNOWN:
                continue
            name, mean = names[code], float(means[code])
            self.means[name] = self.momentum * self.means.get(name, mean) + (1 - self.momentum) * mean

    def _result(self, table: StepTable) -> Float[Tensor, " rows"]:
        result = total_return(table) if self.column == "return" else table[self.column]
        result = outcomes_of(table) if self.column == "outcome" else result
        counts = table.row_weight > 0
        bad = (counts & ~((result >= -SLACK) & (result <= 1 + SLACK))).nonzero()  # NaN is outside too
        if len(bad):
            row = int(bad[0, 0])
            raise InvalidData(
                where=f"weights: difficulty, `{self.column}`, row {row}",
                what=f"a result is {float(result[row]):g}, outside [0, 1], so that it gives no difficulty.",
                remedy="Name a column of results in [0, 1], for instance `column: outcome`.",
            )
        return result

    def _families(self, table: StepTable, whole: Key, counts: Tensor) -> tuple[Tensor, list[str]]:
        """The family of each trajectory, int64 (trajectories,), and the families' names."""
        if self.family is None:
            return torch.zeros(whole.size, dtype=torch.int64), ["all"]
        names = [str(label) for label in table.labels(self.family)]
        codes = _with_cut(table, table[self.family], unknown=len(names))
        self._refuse(table, counts & (codes < 0), "it has no family")
        family = torch.zeros(whole.size, dtype=torch.int64).index_copy_(0, whole.codes[counts], codes[counts])
        self._refuse(table, counts & (codes != family[whole.codes]), "its rows have different families")
        if self.known:
            unknown = torch.tensor([*(name not in self.known for name in names), False])
            self._refuse(table, counts & unknown[codes], f"its family is not one of {', '.join(self.known)}")
        return family, [*names, UNKNOWN]

    def _refuse(self, table: StepTable, bad: Tensor, what: str) -> None:
        if not bool(bad.any()):
            return
        row = int(bad.nonzero()[0, 0])
        trajectory = table.labels("trajectory")[int(table["trajectory"][row])]
        raise InvalidData(
            where=f"weights: difficulty, trajectory {trajectory}",
            what=f"{what} (column `{self.family}`).",
            remedy='Let the environment give one family in its last `info`: {"stratum": "grounding"}.',
        )

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        found = {f"difficulty/{name}/mean": mean for name, mean in sorted(self.means.items())}
        return found | {f"difficulty/{name}/weight": self.weight(name) for name in sorted(self.means)}

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self.means)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means = dict(state["means"])


def _with_cut(table: StepTable, codes: Tensor, unknown: int) -> Int[Tensor, " rows"]:
    """The codes of families. A trajectory that was cut off has that of its group, or `unknown` without one there."""
    lacks = (codes < 0) & cut_off(table)
    key = table.key("group")
    family = torch.full((key.size,), -1, dtype=torch.int64).scatter_reduce(0, key.codes, codes, "amax")[key.codes]
    return torch.where(lacks, torch.where(family < 0, unknown, family), codes)
