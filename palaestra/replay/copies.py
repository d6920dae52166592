"""Copies: a stored episode enters another iteration, in a group of its own or in place of one that failed.

Knows episodes. Knows nothing of stores, rewards or models.

Every step of a copy carries the mark `replayed`, a column of the table by which parts tell it from fresh ones.
"""

from __future__ import annotations

import dataclasses

from palaestra.data import Step, Trajectory
from palaestra.data.trajectory import noted
from palaestra.errors import InvalidData


def is_replayed(trajectory: Trajectory) -> bool:
    """Whether this is a copy of an earlier episode."""
    return any(step.marks.replayed for step in trajectory.steps)


def again(stored: Trajectory, *, group: str, sample: int, **numbers: float) -> Trajectory:
    """A copy under another name; the stored episode stays as it was.

    Args:
        numbers: further columns, equal on every step.
    """
    steps = [noted(step, replayed=1.0, **numbers) for step in stored.steps]
    return dataclasses.replace(stored, group=group, sample=sample, steps=steps)


def in_group_of(member: Trajectory, stored: Trajectory, *, sample: int) -> Trajectory:
    """A copy that stands in the group of `member`.

    Raises: InvalidData, if it solves another task, or if its acts are of another kind than the member's.
    """
    where = f"group {member.group}"
    if stored.task.content_hash != member.task.content_hash:
        raise InvalidData(
            where=where,
            what=f"the stored trajectory {stored.id} is of task {stored.task.content_hash}, the group of "
            f"{member.task.content_hash}.",
            remedy="Only episodes of one task can be compared; keep stores by `Task.content_hash`.",
        )
    theirs, ours = _kinds(stored), _kinds(member)
    strange = sorted(str(kind) for agent, kind in theirs.items() if agent in ours and ours[agent] != kind)
    if strange:
        raise InvalidData(
            where=where,
            what=f"the stored trajectory {stored.id} has acts of another kind ({', '.join(strange)}) than those that "
            "are played now.",
            remedy="Start with an empty store after a change of policy, tokenizer or observations.",
        )
    return again(stored, group=member.group, sample=sample)


def _kinds(trajectory: Trajectory) -> dict[str, tuple[str, ...]]:
    """Per agent, what its policy reads and what it answers with."""
    return {step.agent: _kind(step) for step in trajectory.steps}


def _kind(step: Step) -> tuple[str, ...]:
    vector = step.observation.vector
    read = "prompt ids" if len(step.prompt) else "no vector" if vector is None else f"{vector.size} numbers"
    return (step.policy, read)


def refuse_unknown_probabilities(trajectory: Trajectory, *, where: str) -> None:
    """Raises: InvalidData, if a step that a policy took lacks the log-probabilities under what sampled it."""
    for step in trajectory.steps:
        if len(step.action.tokens) and step.action.logprobs is None:
            raise InvalidData(
                where=f"{where}, trajectory {trajectory.id}, turn {step.turn}",
                what="the step has no log-probabilities of what sampled it.",
                remedy="Old weights cannot be guessed; store episodes that a policy of this run has played.",
            )
