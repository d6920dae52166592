"""Batches: the episodes of one iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

from palaestra.data import Trajectory


@dataclass(slots=True, kw_only=True)
class Batch:
    """Episodes for one iteration.

    Attributes:
        kept: what the update learns from. played: all that was spent for it, kept or not.
        metrics: what strategies and the collector say.
    """

    kept: list[Trajectory]
    played: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)
