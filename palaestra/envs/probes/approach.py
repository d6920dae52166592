"""Approach: steps before the house of `rooms`. Only one action leads through the porch, any through the corridor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.data import derive

ONWARD = "go east"  # through the porch


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """A porch, then a corridor. Places are counted from 0, and the house begins at `length`.

    Attributes:
        prefix: steps of the porch, which are the same in every episode.
        corridor: steps of the corridor, where actions make no difference.
    """

    prefix: int = 0
    corridor: int = 0

    @property
    def length(self) -> int:
        """All steps before the house."""
        return self.prefix + self.corridor

    def legal(self, place: int, actions: Sequence[str]) -> list[str]:
        """The actions that lead on from a place."""
        return [ONWARD] if place < self.prefix else list(actions)

    def leads_on(self, place: int, action: str | None) -> bool:
        """Whether an action leads to the next place."""
        return action == ONWARD or (action is not None and place >= self.prefix)

    def describe(self, place: int) -> str:
        """The text of a place, such as `porch 2. the way on is east.`"""
        if place < self.prefix:
            return f"porch {place + 1}. the way on is east."
        return f"dark corridor {place + 1 - self.prefix}. every way leads on."

    def choose(self, place: int, actions: Sequence[str], seed: int) -> str:
        """An action that leads on. In the corridor it is random, so that imitation prefers no action there."""
        legal = self.legal(place, actions)
        return legal[derive(seed, "corridor", place) % len(legal)]
