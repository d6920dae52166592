"""Sokoban: push boxes onto targets. A box in a corner cannot be moved again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from palaestra.data import derive
from palaestra.envs.worlds.puzzles.grid import SIDES, Place, beside, shortest_way, toward

WALLS = 0.15  # share of the places inside the border
LEAST = 4  # fewest moves of a shortest solution
PULLS = 60  # random moves that take a solved room apart


@dataclass(frozen=True, slots=True)
class Room:
    """A room inside a border of walls, its boxes, and the agent's place."""

    size: int
    walls: frozenset[Place]
    targets: frozenset[Place]
    boxes: frozenset[Place]
    at: Place

    def free(self, place: Place) -> bool:
        """Whether the place has neither a wall nor a box."""
        return place not in self.walls and place not in self.boxes


class Sokoban:
    """The rules of Sokoban."""

    name = "sokoban"
    signs = {"@": "you", "+": "you on a target", "$": "box", "*": "box on a target", "t": "target", ".": "floor",
             "#": "wall"}  # fmt: skip

    def __init__(self, noise: float, boxes: int) -> None:
        self._noise, self._boxes = noise, boxes

    def draw(self, size: int, seed: int) -> Room:
        """The first random room whose shortest solution has at least `LEAST` moves.

        A room begins solved, and random moves pull its boxes away from the targets. So it can always be solved.
        """
        generator = np.random.default_rng(derive(seed, self.name))
        while True:
            room = self._pulled(self._done(size, generator), generator)
            way = solution(room)
            if way is not None and len(way) >= LEAST:
                return room

    def acts(self, board: Room) -> tuple[str, ...]:
        """The four moves."""
        return tuple(SIDES)

    def act(self, board: Room, text: str, *, chance: float) -> Room:
        """Move one place to this side, and push a box that stands there. A blocked act, or one that goes wrong, does
        nothing."""
        there = beside(board.at, text)
        if 0 <= chance < self._noise or there in board.walls:
            return board
        if there not in board.boxes:
            return replace(board, at=there)
        beyond = beside(there, text)
        return replace(board, at=there, boxes=board.boxes - {there} | {beyond}) if board.free(beyond) else board

    def solved(self, board: Room) -> bool:
        """Whether a box stands on every target."""
        return board.boxes == board.targets

    def lost(self, board: Room) -> bool:
        """Always False. An agent that has pushed a box into a corner plays on."""
        return False

    def expert(self, board: Room) -> str | None:
        """The first move of a shortest solution. None if there is no solution any more."""
        way = solution(board)
        return way[0] if way else None

    def rows(self, board: Room) -> list[list[str]]:
        """The signs of the board, row by row."""

        def sign(place: Place) -> str:
            on = place in board.targets
            if place == board.at:
                return "+" if on else "@"
            if place in board.boxes:
                return "*" if on else "$"
            return "#" if place in board.walls else "t" if on else "."

        return [[sign((row, column)) for column in range(board.size)] for row in range(board.size)]

    def brief(self, board: Room) -> str:
        """Where boxes and targets are, and which sides of the agent and of each box are walls."""
        boxes = " ".join(
            f"box {toward(board.at, box)}{' done' if box in board.targets else ''}." for box in sorted(board.boxes)
        )
        targets = " ".join(f"target {toward(board.at, place)}." for place in sorted(board.targets))
        near = " ".join(f"{side} wall." for side in SIDES if beside(board.at, side) in board.walls)
        blocked = " ".join(
            f"box {side} wall." for box in sorted(board.boxes) for side in SIDES if beside(box, side) in board.walls
        )
        return " ".join(part for part in (boxes, targets, near, blocked) if part)

    def _done(self, size: int, generator: np.random.Generator) -> Room:
        """A random room with a box on each target."""
        inner = [(row, column) for row in range(1, size - 1) for column in range(1, size - 1)]
        spots = [inner[int(k)] for k in generator.permutation(len(inner))]
        count = round(WALLS * len(inner))
        border = {(r, c) for r in range(size) for c in range(size)} - set(inner)
        targets = frozenset(spots[count : count + self._boxes])
        return Room(size, frozenset(border | set(spots[:count])), targets, targets, spots[count + self._boxes])

    def _pulled(self, room: Room, generator: np.random.Generator) -> Room:
        for _ in range(PULLS):
            side = list(SIDES)[int(generator.integers(4))]
            back, front = beside(room.at, side), beside(room.at, side, -1)
            if room.free(back):
                moved = room.boxes - {front} | {room.at} if front in room.boxes else room.boxes
                room = replace(room, at=back, boxes=moved)
        return room


@functools.lru_cache(maxsize=50_000)
def solution(room: Room) -> tuple[str, ...] | None:
    """The moves of a shortest solution. None if there is none."""
    rules, dead = Sokoban(0.0, 1), _corners(room)

    def steps(now: Room) -> Iterator[tuple[str, Room]]:
        for side in SIDES:
            after = rules.act(now, side, chance=-1)
            if after != now and not (after.boxes - room.targets) & dead:
                yield side, after

    way = shortest_way(room, steps, lambda now: now.boxes == room.targets)
    return None if way is None else tuple(way)


def _corners(room: Room) -> frozenset[Place]:
    """The places that a box can never leave, because walls on two sides meet there."""
    places = [(row, column) for row in range(room.size) for column in range(room.size)]
    return frozenset(
        place
        for place in places
        if any(beside(place, one) in room.walls for one in ("up", "down"))
        and any(beside(place, one) in room.walls for one in ("left", "right"))
    )
