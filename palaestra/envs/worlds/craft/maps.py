"""Maps: tiles, what can be walked on, how one gets beside something, and maps drawn from a seed.

Knows tiles and places. Knows nothing of items, goals or texts.
"""

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
    """The next place on that side."""
    row, column = SIDES[side]
    return place[0] + row, place[1] + column


def tile(tiles: Map, place: Place) -> str:
    """What is there; `edge` outside of the map."""
    row, column = place
    inside = 0 <= row < len(tiles) and 0 <= column < len(tiles[0])
    return tiles[row][column] if inside else EDGE


def changed(tiles: Map, place: Place, new: str) -> Map:
    """The map with another tile at a place."""
    rows = [list(row) for row in tiles]
    rows[place[0]][place[1]] = new
    return tuple(tuple(row) for row in rows)


def way(tiles: Map, start: Place, goals: Iterable[Place]) -> list[str] | None:
    """Sides to go to, one after another, on a shortest way over grass to one of the places; None without one."""
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
    """Where such tiles are, row by row."""
    return [(r, c) for r, row in enumerate(tiles) for c, found in enumerate(row) if found == kind]


def approach(tiles: Map, start: Place, kind: str) -> tuple[list[str], str] | None:
    """The shortest way to stand beside a tile of this kind, and the side it is then on; None without one."""
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
    """A square map and where one starts: trees, rock, ore, water and a chest on grass.

    Args:
        density: share of places that are not grass. seed: decides everything.
    """
    generator = np.random.default_rng(derive(seed, "map"))
    count = round(density * size * size)
    kinds = [TREE, TREE, TREE, TREE, ROCK, ROCK, ORE, ORE, CHEST]  # what every goal can need
    share = {TREE: 0.5, ROCK: 0.25, WATER: 0.25}
    more = generator.choice(list(share), size=max(0, count - len(kinds)), p=list(share.values()))
    spots = generator.permutation(size * size)
    rows = [[GRASS] * size for _ in range(size)]
    for spot, kind in zip(spots, [*kinds, *map(str, more)], strict=False):
        rows[int(spot) // size][int(spot) % size] = kind
    start = int(spots[len(kinds) + len(more)])
    return tuple(tuple(row) for row in rows), (start // size, start % size)
