"""Minesweeper: reveal every place without a mine. A number tells how many mines are around its place.

Every field can be solved without a guess: `safe_places` proves which places are safe.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from palaestra.data import derive
from palaestra.envs.worlds.puzzles.grid import Place, around

MINES = 0.15  # share of places
LEAST = 2  # fewest acts of a solution
TOGETHER = 16  # most unknown places whose arrangements are all tried


@dataclass(frozen=True, slots=True)
class Field:
    """The mines, the revealed places and the flags."""

    size: int
    mines: frozenset[Place]
    revealed: frozenset[Place]
    flags: frozenset[Place] = frozenset()

    def number(self, place: Place) -> int:
        """Number of mines around a place."""
        return len(self.mines & set(around(place, self.size)))


class Mines:
    """The rules of Minesweeper. A first place is revealed at the start."""

    name = "mines"
    signs = {"?": "unknown", "f": "flag", "x": "mine", **{str(n): f"{n} mines around" for n in range(9)}}

    def __init__(self, noise: float) -> None:
        self._noise = noise

    def draw(self, size: int, seed: int) -> Field:
        """The first random field that can be solved without a guess and needs at least `LEAST` acts."""
        generator = np.random.default_rng(derive(seed, self.name))
        while True:
            spots = [(int(s) // size, int(s) % size) for s in generator.permutation(size * size)]
            start = spots[0]
            away = [place for place in spots[1:] if place not in around(start, size)]
            field = opened(Field(size, frozenset(away[: max(2, round(MINES * size * size))]), frozenset()), start)
            if self._acts_to_solve(field) >= LEAST:
                return field

    def acts(self, board: Field) -> tuple[str, ...]:
        """`reveal` and `flag` for each place."""
        places = [f"{row} {column}" for row in range(board.size) for column in range(board.size)]
        return tuple(f"{word} {place}" for word in ("reveal", "flag") for place in places)

    def act(self, board: Field, text: str, *, chance: float) -> Field:
        """Reveal a place, and all places around it if no mine is near. Or set a flag, or remove it."""
        word, row, column = text.split()
        place = int(row), int(column)
        if 0 <= chance < self._noise or place in board.revealed:
            return board
        return opened(board, place) if word == "reveal" else replace(board, flags=board.flags ^ {place})

    def solved(self, board: Field) -> bool:
        """Whether every place without a mine is revealed, and no mine is."""
        return not self.lost(board) and len(board.revealed) == board.size**2 - len(board.mines)

    def lost(self, board: Field) -> bool:
        """Whether a mine was revealed."""
        return bool(board.mines & board.revealed)

    def expert(self, board: Field) -> str | None:
        """Reveal the first place that the shown numbers prove safe. None if they prove none. The solver does not see
        the mines, only how many there are."""
        place = next(iter(safe_places(board.size, seen(board), len(board.mines))), None)
        return None if place is None else f"reveal {place[0]} {place[1]}"

    def rows(self, board: Field) -> list[list[str]]:
        """The signs of the board, row by row."""

        def sign(place: Place) -> str:
            if place not in board.revealed:
                return "f" if place in board.flags else "?"
            return "x" if place in board.mines else str(board.number(place))

        return [[sign((row, column)) for column in range(board.size)] for row in range(board.size)]

    def brief(self, board: Field) -> str:
        """The number of mines, then each shown number that has unknown places around it, with these places."""
        told = []
        for place in sorted(board.revealed):
            unknown = [near for near in around(place, board.size) if near not in board.revealed]
            if unknown and place not in board.mines:
                where = " or ".join(f"{row} {column}" for row, column in unknown)
                told.append(f"{board.number(place)} in {where}.")
        return " ".join([f"{len(board.mines)} mines.", *dict.fromkeys(told)])

    def _acts_to_solve(self, field: Field) -> int:
        """Number of acts that the solver needs. 0 if it would have to guess."""
        acts = 0
        while not self.solved(field):
            chosen = self.expert(field)
            if chosen is None:
                return 0
            field, acts = self.act(field, chosen, chance=-1), acts + 1
        return acts


def opened(field: Field, place: Place) -> Field:
    """The field with a place revealed. If no mine is near it, the places around it are revealed in the same way."""
    revealed, waiting = set(field.revealed), [place]
    while waiting:
        here = waiting.pop()
        if here not in revealed:
            revealed.add(here)
            if here not in field.mines and field.number(here) == 0:
                waiting += around(here, field.size)
    return replace(field, revealed=frozenset(revealed), flags=field.flags - revealed)


# ---- what the numbers prove -------------------------------------------------------------------------------
Seen = frozenset[tuple[Place, int]]


def seen(field: Field) -> Seen:
    """What an agent sees: the revealed places with their numbers."""
    return frozenset((place, field.number(place)) for place in field.revealed - field.mines)


@functools.lru_cache(maxsize=20_000)
def safe_places(size: int, shown: Seen, mines: int) -> tuple[Place, ...]:
    """The unknown places that have no mine in any arrangement that the numbers allow, in order.

    Numbers that share no unknown place are solved apart from each other. Places that touch no number are safe if the
    others need all mines. A part with more than `TOGETHER` unknown places is not searched completely.
    """
    known = {place for place, _ in shown}
    rules = [
        (frozenset(near for near in around(place, size) if near not in known), count) for place, count in sorted(shown)
    ]
    rules = [(unknown, count) for unknown, count in dict.fromkeys(rules) if unknown]
    rest = (
        {(r, c) for r in range(size) for c in range(size)}
        - known
        - {place for unknown, _ in rules for place in unknown}
    )
    safe: list[Place] = []
    least = 0
    for part in _parts(rules):
        places = sorted({place for unknown, _ in part for place in unknown})
        if len(places) > TOGETHER:
            found = _by_single_numbers(part)
            fewest = 0
        else:
            ways = list(_arrangements(places, part))
            found = {place for place in places if not any(place in way for way in ways)}
            fewest = min(map(len, ways), default=0)
        safe += sorted(found)
        least += fewest
    if rest and least == mines:
        safe += sorted(rest)
    return tuple(sorted(safe))


def _parts(rules: list[tuple[frozenset[Place], int]]) -> list[list[tuple[frozenset[Place], int]]]:
    """The rules in parts. Rules that share a place, directly or through others, are in one part."""
    parts: list[tuple[set[Place], list[tuple[frozenset[Place], int]]]] = []
    for rule in rules:
        touching = [part for part in parts if part[0] & rule[0]]
        merged = (set(rule[0]).union(*(p[0] for p in touching)), [rule, *itertools.chain(*(p[1] for p in touching))])
        parts = [part for part in parts if part not in touching] + [merged]
    return [part for _, part in parts]


def _arrangements(places: list[Place], rules: list[tuple[frozenset[Place], int]]) -> Iterator[frozenset[Place]]:
    """Every set of mines among the places that the rules allow."""

    def extend(index: int, mined: frozenset[Place]) -> Iterator[frozenset[Place]]:
        later = set(places[index:])
        for unknown, count in rules:
            now = len(unknown & mined)
            if now > count or now + len(unknown & later) < count:
                return
        if index == len(places):
            yield mined
            return
        yield from extend(index + 1, mined)
        yield from extend(index + 1, mined | {places[index]})

    return extend(0, frozenset())


def _by_single_numbers(rules: list[tuple[frozenset[Place], int]]) -> set[Place]:
    """Safe places of a part that is too large to try all arrangements: those of a rule with no mines, and those of a
    rule that contains a smaller rule with equally many mines."""
    found = {place for unknown, count in rules if count == 0 for place in unknown}
    for (small, few), (large, many) in itertools.permutations(rules, 2):
        if small < large and few == many:
            found |= large - small
    return found
