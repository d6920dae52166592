"""rStar2-Agent (arXiv 2508.20722) trains reasoning with a code tool under a reward of 0 or 1. Calls often fail, and a
success after many failed calls is rewarded like a clean one. GRPO-RoC samples twice as many trajectories as it trains
on. It keeps all kinds of failures, and those successes with the fewest tool errors and repeated answers; the reward
does not change. By default the successes with the smallest penalty are kept, as in the public code; `mode: sample`
draws them by weights, as in the paper. The service that runs code, the supervised start and the stages of growing
response length are not here. This file is the selection; the estimator is `grpo` in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.data import StepTable, Trajectory, derive
from palaestra.data.iteration import Iteration
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Positive, PositiveInt, register

WHERE = "selection: resample_on_correct"
NO_CALL = 0.5  # the share of errors of a trajectory that called nothing
Count = Annotated[int, pydantic.Field(ge=0)]


@register(
    "selection",
    "resample_on_correct",
    reads=("outcome", "tool_call", "tool_error", "answer"),
    uses=("group",),
    source="arXiv 2508.20722, public code",
)
class ResampleOnCorrect:
    """Keep `keep` trajectories of each group, chosen before anything is compared; the rewards stay as they are.

        p   = errors / calls + min((answers − 1) / turns, 1)         1/2 in place of the first without calls,
                                                                      1 in place of the second without an answer
        n₀  = failures · keep / n, rounded, n₁ = keep − n₀            each at least its minimum, as far as there are any

    First groups leave whose trajectories all ended alike, and groups of fewer than `keep`. Then n₁ successes and n₀
    failures stay: with "lowest" the successes of least p and the first failures, with "sample" successes drawn
    with weights 1 / (p + softness) and failures drawn evenly, without replacement. If no group is left, one that
    ended alike stays, in which no advantage differs from 0.

    Args:
        keep: trajectories of a group, half of `rollout.group`. Usual: 16.
        mode: "lowest", as the public code; "sample", as the paper.
        least_failures, least_successes: minima. Usual: 2.
        softness: > 0, of "sample". Lower: clean trajectories are drawn almost surely. Usual: 0.1.

    With `keep` as large as the group and no group that ended alike, nothing changes.
    """

    def __init__(
        self,
        *,
        keep: PositiveInt = 16,
        mode: Literal["lowest", "sample"] = "lowest",
        least_failures: Count = 2,
        least_successes: Count = 2,
        softness: Positive = 0.1,
    ) -> None:
        """Raises: RecipeError, if the minima are more than `keep`."""
        if least_failures + least_successes > keep:
            raise RecipeError(
                where=WHERE,
                what=f"`least_failures: {least_failures}` and `least_successes: {least_successes}` are more than "
                f"`keep: {keep}`.",
                remedy="Lower the minima, or keep more trajectories of a group.",
            )
        self._keep, self._mode, self._softness = keep, mode, softness
        self._minima = (least_failures, least_successes)
        self._metrics: dict[str, float] = {}

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """The trajectories that the update learns from.

        Raises: InvalidData, if every group is smaller than `keep`, or a trajectory has no outcome of 0 or 1.
        """
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in sorted(trajectories, key=lambda t: (t.group, t.sample)):
            groups.setdefault(trajectory.group, []).append(trajectory)
        whole = [own for own in groups.values() if len(own) >= self._keep]
        if not whole:
            raise InvalidData(
                where=WHERE,
                what=f"`keep: {self._keep}` of each group, and the largest has {max(map(len, groups.values()))}.",
                remedy=f"Set rollout.group={2 * self._keep}, twice as many as are kept.",
            )
        mixed = [own for own in whole if len({_outcome(trajectory) for trajectory in own}) > 1]
        chosen = [self._kept(own, iteration.seed) for own in mixed]
        self._metrics = {
            "resample/groups": len(mixed) / len(groups),
            "resample/penalty": _mean_penalty(t for own in mixed for t in own),
            "resample/penalty_kept": _mean_penalty(t for own in chosen for t in own),
        }
        return [t for own in chosen or [whole[0][: self._keep]] for t in own]

    def __call__(self, table: StepTable, iteration: Iteration) -> Bool[Tensor, " rows"]:
        """All rows: the choice was made among trajectories."""
        return torch.ones(len(table), dtype=torch.bool)

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
        """How many groups were resampled, and the mean penalty of successes before and after."""
        return {name: value for name, value in self._metrics.items() if not math.isnan(value)}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what is drawn depends on seed and group only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""

    def _kept(self, group: Sequence[Trajectory], seed: int) -> list[Trajectory]:
        right = np.array([_outcome(trajectory) for trajectory in group]) == 1
        penalty = np.array([_penalty(trajectory) for trajectory in group])
        draw = np.random.default_rng(derive(seed, "resample", group[0].group)) if self._mode == "sample" else None
        places = resample(right, penalty, keep=self._keep, minima=self._minima, softness=self._softness, draw=draw)
        return [group[place] for place in places]


# ---- numbers ----------------------------------------------------------------------------------------------
def tool_penalty(*, calls: float, errors: float, answers: float, turns: float) -> float:
    """p of one trajectory: how badly it used tools and how badly it answered, in [0, 2].

    Raises: InvalidData, for negative counts, more errors than calls, or no turn.
    """
    if not (0 <= errors <= calls and answers >= 0 and turns > 0):
        raise InvalidData(
            where=WHERE,
            what=f"{calls:g} calls, {errors:g} errors, {answers:g} answers in {turns:g} turns.",
            remedy="Let the environment tell `tool_call`, `tool_error` and `answer` of each act.",
        )
    failed = errors / calls if calls else NO_CALL
    return failed + (min((answers - 1) / turns, 1.0) if answers else 1.0)


def quotas(failures: int, successes: int, *, keep: int, minima: tuple[int, int]) -> tuple[int, int]:
    """How many failures and how many successes stay: keep in all, halves rounded in favor of failures."""
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
    """Places of those that stay, in order.

    Args:
        right: bool (n,). penalty: float (n,), read for successes only.
        draw: None keeps the successes of least penalty and the first failures; else both are drawn.

    Raises: InvalidData, if `keep` is more than n.
    """
    if keep > len(right):
        raise InvalidData(where=WHERE, what=f"`keep: {keep}`, and the group has {len(right)}.")
    failures, successes = np.flatnonzero(~right), np.flatnonzero(right)
    n0, n1 = quotas(len(failures), len(successes), keep=keep, minima=minima)
    if draw is None:
        best = successes[np.argsort(penalty[successes], kind="stable")]
        return sorted([*failures[:n0].tolist(), *best[:n1].tolist()])
    weight = 1 / (penalty[successes] + softness)
    drawn = draw.choice(successes, n1, replace=False, p=weight / weight.sum()) if n1 else successes[:0]
    return sorted([*draw.choice(failures, n0, replace=False).tolist(), *drawn.tolist()])


# ---- trajectories -----------------------------------------------------------------------------------------
def _outcome(trajectory: Trajectory) -> float:
    if trajectory.outcome not in (0.0, 1.0):
        found = "none" if trajectory.outcome is None else f"{trajectory.outcome:g}"
        raise InvalidData(
            where=f"{WHERE}, trajectory {trajectory.id}",
            what=f"its outcome is {found}, neither 0 nor 1.",
            remedy="It tells right from wrong: give `success` in the environment's info.",
        )
    return trajectory.outcome


def _penalty(trajectory: Trajectory) -> float:
    calls, errors, answers = (
        sum(step.info.get(name, 0.0) for step in trajectory.steps) for name in ("tool_call", "tool_error", "answer")
    )
    return tool_penalty(calls=calls, errors=errors, answers=answers, turns=len(trajectory.steps))


def _mean_penalty(trajectories: Any) -> float:
    found = [_penalty(trajectory) for trajectory in trajectories if _outcome(trajectory) == 1]
    return float(np.mean(found)) if found else math.nan
