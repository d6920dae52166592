"""Trajectory: the record of one episode, with its steps token by token, its stop reason and its failure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from palaestra.data.interaction import Action, Observation
from palaestra.data.task import Task


class StopReason(str, Enum):
    """Why an episode ended."""

    COMPLETED = "completed"  # the environment said so
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # sampled tokens of the whole episode
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_OVERFLOW = "context_overflow"  # the next prompt does not fit the model's context
    PARSE_ERROR = "parse_error"  # too many unreadable actions
    TIMEOUT = "timeout"  # wall time of the episode
    SUSPENDED = "suspended"  # not over: it continues in the next iteration
    ERROR = "error"  # see Trajectory.error

    @property
    def cut(self) -> bool:
        """Whether a limit of the library cut the episode off, so that rewards could still have followed."""
        return self not in (StopReason.COMPLETED, StopReason.SUSPENDED, StopReason.ERROR)


@dataclass(slots=True, kw_only=True)
class Failure:
    """Why and where an episode failed. `boundary`: environment, engine, tool, judge or part."""

    boundary: str
    message: str
    kind: str = ""


@dataclass(slots=True, kw_only=True, frozen=True)
class Marks:
    """Numbers and labels that the library itself writes on a step. A mark becomes a column; None is "not marked".

    An environment's numbers of these names stay in `Step.info` and become no column.

    Attributes:
        row_weight: 0 on acts of an opponent, which count in no statistic.
        fresh: 1 on acts of this iteration, 0 on acts of an earlier window of their episode.
        copied: 1 on acts that a branch copied from the episode that it branched off.
        foreign: 1 if the prompt is not the one that the act was sampled with; guided: 1 if that one held guidance.
        branch: 1 on acts of a copy under another prompt, 0 on acts of the original; pair: number of the two.
        replayed: 1 on acts of an earlier iteration that are learned from again; anchored: 1 if such acts are clipped
            around the behavior policy; imitated: their weight in imitation.
        noise: 1 on random acts of a demonstration, which are not imitated.
        node: label of the act's node in a tree.
    """

    row_weight: float | None = None
    fresh: float | None = None
    copied: float | None = None
    foreign: float | None = None
    guided: float | None = None
    branch: float | None = None
    pair: float | None = None
    replayed: float | None = None
    anchored: float | None = None
    imitated: float | None = None
    noise: float | None = None
    node: str | None = None


MARKS = tuple(mark.name for mark in fields(Marks))


class Picture(NamedTuple):
    """An image, and where it stands among the ids of a prompt or a sequence.

    Attributes:
        image: uint8 (height, width, channels), as the environment gave it.
        start: the place of the first id that stands for the image; stop: the place after the last one. Ids of other
            tokens may stand between them, such as marks of rows.
        count: how many of these ids stand for the image.
        inputs: what the model reads in their place, as its processor makes it of the image. Requests to an engine and
            training batches have it; steps leave it out.
    """

    image: np.ndarray
    start: int
    stop: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    inputs: Mapping[str, Any] | None = None

    def moved(self, by: int) -> Picture:
        """The same picture, so many ids later."""
        return self._replace(start=self.start + by, stop=self.stop + by)


def digest_of(image: np.ndarray) -> bytes:
    """A hash of an image: equal images have equal ones."""
    return hashlib.blake2b(f"{image.shape}".encode() + image.tobytes(), digest_size=16).digest()


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """One act of one agent.

    Attributes:
        agent: the agent's name.
        turn: order inside the trajectory, over all agents, from 0.
        action: what was done.
        observation: what the agent saw before the act.
        reward: the agent's rewards from this act until its next one.
        policy: name of the policy that acted; version: of its weights.
        prompt: int32 (m,), only the prompt ids that are new since this segment's previous step.
        pictures: what stands for images in `prompt`, in order.
        segment: number of the token sequence that the step belongs to; a context that cannot append starts a new one.
        invocation: number of the call of a sub-agent; parent: turn of the step that called it.
        terminated, truncated: set on an agent's last step.
        seconds: wall time from the observation to the environment's answer to the act; 0 where nothing measured it.
        marks: notes of the library. info: JSON values of environments and programs; numbers become columns.
    """

    agent: str
    turn: int
    action: Action
    observation: Observation
    reward: float = 0.0
    policy: str = ""
    version: int = 0
    prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    pictures: tuple[Picture, ...] = ()
    segment: int = 0
    invocation: int = 0
    parent: int | None = None
    terminated: bool = False
    truncated: bool = False
    seconds: float = 0.0
    marks: Marks = Marks()
    info: dict[str, Any] = field(default_factory=dict)

    def mark(self, **marks: Any) -> None:
        """Set marks of this step. Its other marks do not change."""
        self.marks = replace(self.marks, **marks)


def noted(step: Step, **numbers: Any) -> Step:
    """A copy of the step with further numbers. Names of `Marks` become marks, and other names entries of `info`."""
    marks = {name: value for name, value in numbers.items() if name in MARKS}
    others = {name: value for name, value in numbers.items() if name not in MARKS}
    return replace(step, marks=replace(step.marks, **marks), info={**step.info, **others})


class NextPrompt(NamedTuple):
    """New prompt ids (int32) that an observation after the last step would have had, their segment and pictures."""

    ids: np.ndarray
    segment: int = 0
    pictures: tuple[Picture, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Trajectory:
    """One episode.

    Attributes:
        task: what was played.
        group: name of the group; its trajectories are of one task and are compared with each other.
        sample: index inside the group.
        steps: in order of `turn`.
        outcome: the raw result (success 0/1, score), never shaped; None if the environment gave none, or none yet.
        returns: sum of rewards per agent.
        stop: why it ended; error: the failure, if it failed.
        last: per agent, the observation after its last step, if the episode was cut off.
        next_prompts: per agent, the prompt ids of that observation; a critic gives `bootstrap_value` after them.
        info: the environment's last info.
        replaced: how many characters, texts and values were replaced because no file can hold them, as
            `palaestra.boundary.cleaning` says.
    """

    task: Task
    group: str
    sample: int = 0
    steps: list[Step] = field(default_factory=list)
    outcome: float | None = None
    returns: dict[str, float] = field(default_factory=dict)
    stop: StopReason = StopReason.COMPLETED
    error: Failure | None = None
    last: dict[str, Observation] = field(default_factory=dict)
    next_prompts: dict[str, NextPrompt] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    replaced: Counter[str] = field(default_factory=Counter)

    @property
    def id(self) -> str:
        """Unique in a batch: group and sample."""
        return f"{self.group}/{self.sample}"

    def sequence(self, agent: str, segment: int) -> np.ndarray:
        """All ids of one segment of one agent, prompts and responses in order: int32 (length,)."""
        pieces = [np.zeros(0, np.int32)]
        for step in self.steps:
            if step.agent == agent and step.segment == segment:
                pieces += [step.prompt, step.action.tokens]
        return np.concatenate(pieces)

    def prompt_of(self, step: Step) -> np.ndarray:
        """The whole prompt that the policy saw before `step`, put together from the segment: int32 (length,)."""
        pieces = []
        for earlier in self.steps:
            if earlier.agent == step.agent and earlier.segment == step.segment:
                pieces.append(earlier.prompt)
                if earlier is step:
                    return np.concatenate(pieces)
                pieces.append(earlier.action.tokens)
        raise ValueError(f"step of turn {step.turn} is not part of trajectory {self.id}")
