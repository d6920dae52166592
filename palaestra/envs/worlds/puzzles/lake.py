"""Frozen Lake: walk over ice, which may be slippery, to the goal, and avoid the holes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from palaestra.data import derive
from palaestra.envs.worlds.puzzles.grid import SIDES, Place, beside, inside, shortest_way, toward

HOLES = 0.25  # share of places
LEAST = 3  # fewest moves of a shortest way


@dataclass(frozen=True, slots=True)
class Ice:
    """The lake and the agent's place."""

    size: int
    holes: frozenset[Place]
    goal: Place
    at: Place


class Lake:
    """The rules of Frozen Lake."""

    name = "lake"
    signs = {"@": "you", ".": "ice", "o": "hole", "g": "goal"}

    def __init__(self, noise: float) -> None:
        self._noise = noise

    def draw(self, size: int, seed: int) -> Ice:
        """The first random lake whose shortest way to the goal has at least `LEAST` moves."""
        generator = np.random.default_rng(derive(seed, self.name))
        while True:
            spots = [(int(s) // size, int(s) % size) for s in generator.permutation(size * size)]
            count = round(HOLES * size * size)
            ice = Ice(size, frozenset(spots[2 : 2 + count]), spots[0], spots[1])
            way = self._way(ice)
            if way is not None and len(way) >= min(LEAST, size):
                return ice

    def acts(self, board: Ice) -> tuple[str, ...]:
        """The four moves."""
        return tuple(SIDES)

    def act(self, board: Ice, text: str, *, chance: float) -> Ice:
        """Move one place to this side. An agent that slips moves to the left or to the right of it instead."""
        if 0 <= chance < self._noise:
            sides = list(SIDES)
            text = sides[(sides.index(text) + (1 if chance < self._noise / 2 else 3)) % 4]
        there = beside(board.at, text)
        return replace(board, at=there) if inside(there, board.size) else board

    def solved(self, board: Ice) -> bool:
        """Whether the agent is at the goal."""
        return board.at == board.goal

    def lost(self, board: Ice) -> bool:
        """Whether the agent is in a hole."""
        return board.at in board.holes

    def expert(self, board: Ice) -> str | None:
        """The first move of a shortest way."""
        way = self._way(board)
        return way[0] if way else None

    def rows(self, board: Ice) -> list[list[str]]:
        """The signs of the board, row by row."""

        def sign(place: Place) -> str:
            return "@" if place == board.at else "g" if place == board.goal else "o" if place in board.holes else "."

        return [[sign((row, column)) for column in range(board.size)] for row in range(board.size)]

    def brief(self, board: Ice) -> str:
        """Where the goal is, then what lies one place and two places away on each side."""

        def tile(place: Place) -> str:
            return "hole" if place in board.holes else "ice" if inside(place, board.size) else "edge"

        near = " ".join(f"{side} {tile(beside(board.at, side))}." for side in SIDES)
        far = " ".join(f"{side} {tile(beside(board.at, side, 2))}." for side in SIDES)
        return f"goal {toward(board.at, board.goal)}. {near} then {far}"

    def _way(self, board: Ice) -> list[str] | None:
        def steps(at: Place) -> list[tuple[str, Place]]:
            found = [(side, beside(at, side)) for side in SIDES]
            return [(side, place) for side, place in found if inside(place, board.size) and place not in board.holes]

        return shortest_way(board.at, steps, lambda at: at == board.goal)
