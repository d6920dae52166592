"""Limits of one episode, and the signal that ends it before its program is through. Knows settings and plays."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.data import StopReason
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.stage import Play


class Halt(Exception):
    """Ends an episode before its program is through."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits of one episode; None is no limit. Turns are steps of the environment, or acts of one agent."""

    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, play: Play, settings: RolloutSettings) -> Limits:
        """Those of the settings, but the turns of the play where it says so."""
        turns = settings.max_turns if play.turns is None else play.turns
        return cls(turns=turns, tokens=settings.max_tokens, seconds=settings.max_seconds)
