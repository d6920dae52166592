"""The settings of the rollout: keys, defaults and their meaning. This module imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from palaestra.registry import Count, NonNegative, Positive, PositiveInt, Section
from palaestra.registry.bound import BoundPart


class RolloutSettings(Section):
    """How many episodes are played, how long they are, how actions are sampled, and where environments run."""

    IGNORES_IF = {"workers=0": ("worker_kind",)}

    runner: BoundPart = BoundPart(name="episodes")
    tasks: Count = 16  # task instances an iteration
    group: Count = 8  # trajectories per task instance
    max_turns: PositiveInt = 32  # of an episode
    max_tokens: PositiveInt | None = None  # sampled tokens of an episode
    max_seconds: Positive | None = None  # wall time of an episode
    window: PositiveInt | None = None  # of runner `windows`: sampled tokens of an episode in one iteration; None: all
    response_tokens: PositiveInt = 16  # of one generation
    temperature: NonNegative = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0)] = 0  # 0: all tokens
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    stuck_seconds: Positive | None = 60.0  # an episode in which nothing happens for so long fails; null: no limit
    in_flight: PositiveInt = 512  # episodes at the same time
    workers: Annotated[int, pydantic.Field(ge=0, le=4096)] = 0  # 0: environments run in the event loop
    worker_kind: Literal["thread", "process"] = "thread"
    step_seconds: Positive | None = None  # an environment step that takes longer fails its episode; needs workers
