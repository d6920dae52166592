"""Maps: tiles and places, shortest ways over grass, and maps drawn from a seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from palaestra.data import derive

Place = tuple[int, int]  # row, column
Map = tuple[tuple[str, ...], ...]
GRASS, TREE, ROCK, ORE, WATER, TABLE, PLANKS, CHEST, OPENED, EDGE = (
    "grass", "tree", "rock", "ore", "water", "table", "planks", "chest", "open chest", "edge",
)  # fmt: skip
TILES = (GRASS, TREE, ROCK, ORE, WATER, TABLE, PLANKS, CHEST, OPENED, EDGE)
SIDES: dict[str, Place] = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
TURNS = tuple(SIDES)  # clockwise


def beside(place: Place, side: str) -> Place:
    """The place next to this one, on a side."""
    row, column = SIDES[side]
    return place[0] + row, place[1] + column


def tile(tiles: Map, place: Place) -> str:
    """The tile at a place; `edge` outside of the map."""
    row, column = place
    inside = 0 <= row < len(tiles) and 0 <= column < len(tiles[0])
    return tiles[row][column] if inside else EDGE


def changed(tiles: Map, place: Place, new: str) -> Map:
    """The map with another tile at a place."""
    rows = [list(row) for row in tiles]
    rows[place[0]][place[1]] = new
    return tuple(tuple(row) for row in rows)


def way(tiles: Map, start: Place, goals: Iterable[Place]) -> list[str] | None:
    """The sides to walk to, in order, on a shortest way over grass to one of the goals; None if there is no way."""
    ends = set(goals)
    came: dict[Place, tuple[Place, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        if here in ends:
            return _back(came, here)
        for side in TURNS:
            there = beside(here, side)
            if there not in came and tile(tiles, there) == GRASS:
                came[there] = here, side
                waiting.append(there)
    return None


def _back(came: dict[Place, tuple[Place, str] | None], end: Place) -> list[str]:
    sides: list[str] = []
    step = came[end]
    while step is not None:
        end, side = step
        sides.append(side)
        step = came[end]
    return sides[::-1]


def places(tiles: Map, kind: str) -> list[Place]:
    """The places of all tiles of a kind, row by row."""
    return [(r, c) for r, row in enumerate(tiles) for c, found in enumerate(row) if found == kind]


def approach(tiles: Map, start: Place, kind: str) -> tuple[list[str], str] | None:
    """A shortest way to a place beside a tile of this kind, and the side on which the tile is from there.

    Returns: the sides to walk to, and the side of the tile; None if there is no way.
    """
    stands = {
        beside(place, TURNS[(number + 2) % 4]): side
        for place in places(tiles, kind)
        for number, side in enumerate(TURNS)
    }
    sides = way(tiles, start, stands)
    if sides is None:
        return None
    here = start
    for side in sides:
        here = beside(here, side)
    return sides, stands[here]


def draw_map(size: int, density: float, seed: int) -> tuple[Map, Place]:
    """Draw a square map of grass with trees, rock, ore, water and a chest, and the place where the agent starts.

    Args:
        density: share of places that are not grass.
        seed: decides everything.
    """
    generator = np.random.default_rng(derive(seed, "map"))
    count = round(density * size * size)
    kinds = [TREE, TREE, TREE, TREE, ROCK, ROCK, ORE, ORE, CHEST]  # enough for every goal
    share = {TREE: 0.5, ROCK: 0.25, WATER: 0.25}
    more = generator.choice(list(share), size=max(0, count - len(kinds)), p=list(share.values()))
    spots = generator.permutation(size * size)
    rows = [[GRASS] * size for _ in range(size)]
    for spot, kind in zip(spots, [*kinds, *map(str, more)], strict=False):
        rows[int(spot) // size][int(spot) % size] = kind
    start = int(spots[len(kinds) + len(more)])
    return tuple(tuple(row) for row in rows), (start // size, start % size)
