"""Copies of stored episodes for another iteration, in a group of their own or in the group of other episodes.

Every step of a copy has the mark `replayed`, a column of the table by which parts tell copies from new episodes.
"""

from __future__ import annotations

import dataclasses

from palaestra.data import Step, Trajectory
from palaestra.data.trajectory import noted
from palaestra.errors import InvalidData


def is_replayed(trajectory: Trajectory) -> bool:
    """Whether a trajectory is a copy of an earlier episode."""
    return any(step.marks.replayed for step in trajectory.steps)


def again(stored: Trajectory, *, group: str, sample: int, **numbers: float) -> Trajectory:
    """A copy in another group. The stored episode is not changed.

    Args:
        numbers: further columns, with one value for all steps.
    """
    steps = [noted(step, replayed=1.0, **numbers) for step in stored.steps]
    return dataclasses.replace(stored, group=group, sample=sample, steps=steps)


def in_group_of(member: Trajectory, stored: Trajectory, *, sample: int) -> Trajectory:
    """A copy in the group of `member`.

    Raises: InvalidData, if the stored episode is of another task, or its acts are of another kind than the member's.
    """
    where = f"group {member.group}"
    if stored.task.content_hash != member.task.content_hash:
        raise InvalidData(
            where=where,
            what=f"the stored trajectory {stored.id} is of task {stored.task.content_hash}, the group of "
            f"{member.task.content_hash}.",
            remedy="Only episodes of one task can be compared. Look up stored episodes by `Task.content_hash`.",
        )
    theirs, ours = _kinds(stored), _kinds(member)
    strange = sorted(str(kind) for agent, kind in theirs.items() if agent in ours and ours[agent] != kind)
    if strange:
        raise InvalidData(
            where=where,
            what=f"the stored trajectory {stored.id} has acts of another kind ({', '.join(strange)}) than the group.",
            remedy="Start with an empty store after a change of policy, tokenizer or observations.",
        )
    return again(stored, group=member.group, sample=sample)


def _kinds(trajectory: Trajectory) -> dict[str, tuple[str, ...]]:
    """Agent → its policy, and what the policy reads."""
    return {step.agent: _kind(step) for step in trajectory.steps}


def _kind(step: Step) -> tuple[str, ...]:
    vector = step.observation.vector
    read = "prompt ids" if len(step.prompt) else "no vector" if vector is None else f"{vector.size} numbers"
    return (step.policy, read)


def refuse_unknown_probabilities(trajectory: Trajectory, *, where: str) -> None:
    """Raises: InvalidData, if a step has tokens without the log-probabilities of the policy that sampled them."""
    for step in trajectory.steps:
        if len(step.action.tokens) and step.action.logprobs is None:
            raise InvalidData(
                where=f"{where}, trajectory {trajectory.id}, turn {step.turn}",
                what="the step has no log-probabilities of the policy that sampled it.",
                remedy="Store only episodes that a policy of this run has played. Older weights are not known.",
            )
