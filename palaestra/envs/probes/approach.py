"""Approach: steps on the way to a house, before anything can be decided.

Knows a porch, where one action leads on, and a corridor, where all do. Knows nothing of the house behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.data import derive

ONWARD = "go east"  # through the porch


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """First the porch, then the corridor; places are counted from 0 and the house begins at `length`.

    Attributes:
        prefix: steps of the porch. Whoever knows it takes the same steps in every episode.
        corridor: steps of the corridor. Whatever is done there makes no difference.
    """

    prefix: int = 0
    corridor: int = 0

    @property
    def length(self) -> int:
        """Steps before the house."""
        return self.prefix + self.corridor

    def legal(self, place: int, actions: Sequence[str]) -> list[str]:
        """What leads on."""
        return [ONWARD] if place < self.prefix else list(actions)

    def leads_on(self, place: int, action: str | None) -> bool:
        """Whether an action leads to the next place."""
        return action == ONWARD or (action is not None and place >= self.prefix)

    def describe(self, place: int) -> str:
        """`porch 2. the way on is east.`"""
        if place < self.prefix:
            return f"porch {place + 1}. the way on is east."
        return f"dark corridor {place + 1 - self.prefix}. every way leads on."

    def choose(self, place: int, actions: Sequence[str], seed: int) -> str:
        """A good action; in the corridor any, so that who imitates it stays undecided there."""
        legal = self.legal(place, actions)
        return legal[derive(seed, "corridor", place) % len(legal)]
