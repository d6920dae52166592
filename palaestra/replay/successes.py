"""The success store, which keeps solved episodes by task for groups in which no episode solves the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palaestra.data import StopReason, Task, Trajectory, derive
from palaestra.errors import InvalidData
from palaestra.registry import PositiveInt
from palaestra.replay.copies import refuse_unknown_probabilities
from palaestra.replay.packing import pack, unpack


class SuccessStore:
    """The newest solved episodes of each task.

    Args:
        per_task: most episodes of one task. Higher: more varied, older experience. Usual: 1–8.
        success: smallest outcome of a solved episode. Usual: 1.
    """

    def __init__(self, *, per_task: PositiveInt = 4, success: float = 1.0) -> None:
        self.per_task, self.success = per_task, success
        self._held: dict[str, list[Trajectory]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def __contains__(self, task: Task) -> bool:
        return bool(self._held.get(task.content_hash))

    def solved(self, trajectory: Trajectory) -> bool:
        """Whether an episode is a success. An episode that ended by an error or is not over is not one."""
        over = trajectory.stop not in (StopReason.ERROR, StopReason.SUSPENDED)
        return over and trajectory.outcome is not None and trajectory.outcome >= self.success

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Store solved episodes, in this order.

        Raises: InvalidData, for an episode that is no success, or without log-probabilities of the sampling policy.
        """
        for trajectory in trajectories:
            if not self.solved(trajectory):
                raise InvalidData(
                    where=f"success store, trajectory {trajectory.id}",
                    what=f"its outcome is {trajectory.outcome} (stop reason {trajectory.stop.value}), and a success "
                    f"has at least {self.success:g}.",
                    remedy="Store solved episodes only, or set `success` to the smallest outcome of a solved episode.",
                )
            refuse_unknown_probabilities(trajectory, where="success store")
            held = self._held.setdefault(trajectory.task.content_hash, [])
            held.append(trajectory)
            del held[: -self.per_task]

    def draw(self, task: Task, *, seed: int) -> Trajectory | None:
        """Draw one stored success of the task, all equally likely. None if there is none."""
        held = self._held.get(task.content_hash)
        return held[derive(seed, "success", task.content_hash) % len(held)] if held else None

    def state_dict(self) -> dict[str, Any]:
        """All stored episodes, task by task."""
        return {"episodes": pack([trajectory for held in self._held.values() for trajectory in held])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the episodes that were saved."""
        self._held = {}
        self.add(unpack(state["episodes"]))
