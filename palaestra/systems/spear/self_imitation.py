"""The advantage filter `self_imitation`: it stores episodes that were better than their group, and replays them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from palaestra.algebra import segment_count, segment_mean, segment_std, total_return
from palaestra.data import Batch, Key, StepTable, Trajectory
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.registry import PositiveInt, Scale, register
from palaestra.replay import again, is_replayed, pack, refuse_unknown_probabilities, unpack

Tolerance = Annotated[int, pydantic.Field(ge=0)]
Factor = Annotated[float, pydantic.Field(ge=1)]
Decay = Annotated[float, pydantic.Field(gt=0, le=1)]
EPS = 1e-6


@dataclass(slots=True, kw_only=True)
class Kept:
    """A stored episode with its return, its advantage and the iteration that played it."""

    trajectory: Trajectory
    reward: float
    advantage: float
    step: int


@register(
    "advantage",
    "self_imitation",
    reads=("anchored?", "imitated?"),
    writes=("advantage",),
    source="arXiv 2509.22601, public code",
)
class SelfImitation(StatefulPart):
    """Replay episodes of positive advantage as a second batch, with a recomputed advantage.

        keep      (episode, R, A, s) with A > 0, while it is at most `tolerance` iterations old
        replay    all with A' ≥ 0, once they are more than overflow · capacity; then the store is empty again
        A' = R − P50, P50 = median of the mean returns of the last `history` groups       (median)
        A' = decay · A                                                                     (decay)

    Fresh rows keep the advantage of the estimator before it. Replayed rows are groups of their own, with `replayed` 1,
    and are clipped around the log-probabilities that were stored with them (`anchored` 1).

    Args:
        capacity: episodes. Higher: rarer, larger second batches. Usual: 32 for small batches, 2048 for large ones.
        overflow: ≥ 1. A replay needs more than overflow · capacity stored episodes. Usual: 1.5.
        tolerance: ≥ 0, iterations after which an episode is dropped. Usual: 5–10.
        history: groups whose mean returns give the median. Usual: 10240.
        recalibrate: "median" or "decay".
        decay: in (0, 1], of recalibrate "decay". Usual: 1.
        scale: "std" divides R − P50 by the median of the groups' deviations, for an estimator that divides by
            deviations too. Usual: "none".

    Called with a table (columns group, trajectory, reward (rows,)) and an advantage (rows,) or (tokens,), it returns an
    advantage of that shape.
    Raises: InvalidData, for an episode to be stored that has no log-probabilities of the policy that sampled it.
    """

    provides = frozenset({"replayed", "anchored"})

    def __init__(
        self,
        *,
        capacity: PositiveInt = 64,
        overflow: Factor = 1.5,
        tolerance: Tolerance = 10,
        history: PositiveInt = 10240,
        recalibrate: Literal["median", "decay"] = "median",
        decay: Decay = 1.0,
        scale: Scale = "none",
    ) -> None:
        self._limit, self._tolerance = overflow * capacity, tolerance
        self._recalibrate, self._decay, self._scale = recalibrate, decay, scale
        self._kept: list[Kept] = []
        self._means: deque[float] = deque(maxlen=history)
        self._deviations: deque[float] = deque(maxlen=history)
        self._advantage = torch.zeros(0)
        self._replayed = 0

    # ---- the second batch ---------------------------------------------------------------------------------
    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """The fresh episodes and, when enough are stored, copies of the stored ones with A' ≥ 0."""
        self._kept = [kept for kept in self._kept if iteration.number - kept.step <= self._tolerance]
        self._replayed = 0
        if len(self._kept) <= self._limit:
            return trajectories
        worth = [(kept, self.recalibrated(kept.reward, kept.advantage)) for kept in self._kept]
        copies = [
            again(kept.trajectory, group=f"replay-{kept.trajectory.id}", sample=0, anchored=1.0, imitated=value)
            for kept, value in worth
            if value >= 0
        ]
        self._kept, self._replayed = [], len(copies)
        return [*trajectories, *copies]

    def recalibrated(self, reward: float, advantage: float) -> float:
        """A' of an episode with this return and this advantage when it was stored."""
        if self._recalibrate == "decay":
            return self._decay * advantage
        value = reward - self.median
        return value / (float(np.median(self._deviations)) + EPS) if self._scale == "std" else value

    @property
    def median(self) -> float:
        """P50: the median of the groups' mean returns; 0 before the first group."""
        return float(np.median(self._means)) if self._means else 0.0

    def __call__(self, table: StepTable, advantage: Tensor, iteration: Iteration) -> Tensor:
        self._advantage = advantage
        if "anchored" not in table or "imitated" not in table:
            return advantage
        second, value = table["anchored"] > 0, table["imitated"] * (table.row_weight > 0)
        if len(advantage) != len(table):
            second, value = second[table.token_row], value[table.token_row]
        return torch.where(second, value, advantage)

    # ---- what is kept -------------------------------------------------------------------------------------
    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Store this iteration's episodes of positive advantage, and the mean return of each group."""
        table = batch.table
        names = [str(label) for label in table.labels("trajectory")]
        played = {row.trajectory.id: row.trajectory for row in iteration.rows if not is_replayed(row.trajectory)}
        whole = table.key("trajectory")
        size = segment_count(by=whole)
        reward = segment_mean(total_return(table), by=whole).tolist()
        credit = segment_mean(self._per_row(table), by=whole).tolist()
        fresh = [name in played for name in names]
        for code, name in enumerate(names):
            if fresh[code] and size[code] > 0 and credit[code] > 0:
                refuse_unknown_probabilities(played[name], where="advantage: self_imitation")
                self._kept.append(
                    Kept(trajectory=played[name], reward=reward[code], advantage=credit[code], step=iteration.number)
                )
        self._note_groups(table, torch.tensor(fresh)[table["trajectory"]])
        return {
            "imitation/stored": float(len(self._kept)),
            "imitation/replayed": float(self._replayed),
            "imitation/median": self.median,
        }

    def _per_row(self, table: StepTable) -> Tensor:
        """The advantage of each row; the mean over its tokens, if advantages are per token."""
        if len(self._advantage) == len(table):
            return self._advantage
        rows = Key(table.token_row, len(table))
        return segment_mean(self._advantage, by=rows)

    def _note_groups(self, table: StepTable, fresh: Tensor) -> None:
        """Store mean and deviation of the returns of each fresh group, each trajectory once; groups in the order of
        their names.
        """
        order, last = table.timeline("trajectory")
        once = torch.zeros(len(table), dtype=torch.float64)
        once[order[last]] = 1.0
        group = table.key("group")
        peers = Key(group.codes, group.size, (), once * fresh * (table.row_weight > 0))
        returns = total_return(table)
        counts, means = segment_count(by=peers), segment_mean(returns, by=peers)
        deviations = segment_std(returns, by=peers)
        for _, code in sorted((str(label), code) for code, label in enumerate(table.labels("group"))):
            if counts[code] > 0:
                self._means.append(float(means[code]))
                self._deviations.append(float(deviations[code]))

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Stored episodes with their numbers, and the groups' history."""
        return {
            "episodes": pack([kept.trajectory for kept in self._kept]),
            "numbers": torch.tensor([[k.reward, k.advantage, k.step] for k in self._kept], dtype=torch.float64),
            "means": torch.tensor(self._means, dtype=torch.float64),
            "deviations": torch.tensor(self._deviations, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._kept = [
            Kept(trajectory=trajectory, reward=reward, advantage=advantage, step=int(step))
            for trajectory, (reward, advantage, step) in zip(
                unpack(state["episodes"]), state["numbers"].tolist(), strict=True
            )
        ]
        self._means = deque(state["means"].tolist(), maxlen=self._means.maxlen)
        self._deviations = deque(state["deviations"].tolist(), maxlen=self._deviations.maxlen)
