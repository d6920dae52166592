"""Solvers of games and puzzles: lines of three, four in a row, lights, pegs and shortest paths.

They take positions as plain values, not as objects of the package.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
DEPTH = 4  # moves of look-ahead in four in a row
WIN = 1000.0
State = TypeVar("State", bound=Hashable)


# ---- lines of three ---------------------------------------------------------------------------------------
@functools.cache
def lines_of_three(board: str, own: str, *, wild: bool) -> tuple[str, ...]:
    """The moves that are optimal against good play and, among these, best against random play.

    Args:
        board: nine of `X`, `O` and `.`.
        own: the sign of the player to move. In the wild game both players use both signs.
    """
    worth = {move: _worth_of(after, own, wild) for move, after in _moves(board, own, wild)}
    best = max(worth.values())
    return tuple(move for move, found in worth.items() if found == best)


def _worth_of(board: str, mover: str, wild: bool) -> tuple[float, float]:
    """The values of a position for the player that has just moved: against good play, and against random play."""
    if _three(board):
        return 1.0, 1.0
    if "." not in board:
        return 0.0, 0.0
    good, by_chance = _answers(board, "XO"[mover == "X"], wild)
    return -good, by_chance


@functools.cache
def _answers(board: str, other: str, wild: bool) -> tuple[float, float]:
    """Values of a position before the other player's move: its own by good play, and ours if it plays randomly."""
    us = "XO"[other == "X"]
    good, chances = -1.0, []
    for _, after in _moves(board, other, wild):
        good = max(good, _worth_of(after, other, wild)[0])
        if _three(after):
            chances.append(-1.0)
        elif "." not in after:
            chances.append(0.0)
        else:
            chances.append(max(_worth_of(ours, us, wild) for _, ours in _moves(after, us, wild))[1])
    return good, round(sum(chances) / len(chances), 9)


def _moves(board: str, own: str, wild: bool) -> list[tuple[str, str]]:
    """Each move with the board after it."""
    found = []
    for cell in range(9):
        for mark in "XO" if wild else own:
            if board[cell] == ".":
                found.append((f"{mark} {cell}" if wild else str(cell), board[:cell] + mark + board[cell + 1 :]))
    return found


def _three(board: str) -> bool:
    return any(board[a] == board[b] == board[c] != "." for a, b, c in LINES)


# ---- four in a row ----------------------------------------------------------------------------------------
def four_in_a_row(board: Sequence[Sequence[str]], own: str, other: str) -> list[int]:
    """The best columns, by a look-ahead of a few moves. Of equally good ones, those nearest to the middle."""
    height, width = len(board), len(board[0])
    # A column has height + 1 bits, from its lowest cell up. The top bit stays empty, so that no line wraps around.
    mine, theirs = (
        sum(
            1 << (column * (height + 1) + height - 1 - row)
            for row in range(height)
            for column in range(width)
            if board[row][column] == mark
        )
        for mark in (own, other)
    )
    search = _Search(height, width)
    worth = {column: search.worth(mine, theirs, column, DEPTH, -WIN * 2) for column in search.open(mine | theirs)}
    best = max(worth.values())
    good = [column for column, found in worth.items() if found == best]
    middle = min(abs(2 * column - width + 1) for column in good)
    return [column for column in good if abs(2 * column - width + 1) == middle]


class _Search:
    """Alpha-beta search on bit boards of one size."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width, self.high = height, width, height + 1
        self.order = sorted(range(width), key=lambda column: abs(2 * column - width + 1))
        self.tops = [1 << (column * self.high + height - 1) for column in range(width)]
        self.bottoms = [1 << (column * self.high) for column in range(width)]
        self.shifts = (1, self.high, self.high + 1, self.high - 1)

    def open(self, taken: int) -> list[int]:
        return [column for column in self.order if not taken & self.tops[column]]

    def worth(self, mine: int, theirs: int, column: int, depth: int, floor: float) -> float:
        """The value of dropping a disc into a column. It is exact from `floor` up; below, an upper bound."""
        taken = mine | theirs
        mine |= (taken + self.bottoms[column]) & (self.tops[column] * 2 - self.bottoms[column])
        if self._four(mine):
            return WIN + depth
        choices = self.open(mine | theirs)
        if not choices:
            return 0.0
        if depth == 0:
            return self._threats(mine, theirs) - self._threats(theirs, mine)
        best = -WIN * 2
        for answer in choices:
            best = max(best, self.worth(theirs, mine, answer, depth - 1, best))
            if -best < floor:
                break
        return -best

    def _four(self, discs: int) -> bool:
        for shift in self.shifts:
            pairs = discs & (discs >> shift)
            if pairs & (pairs >> 2 * shift):
                return True
        return False

    def _threats(self, discs: int, others: int) -> float:
        """The number of adjacent pairs that are open on one side: a rough value of a position."""
        return float(sum((discs & (discs >> s) & ~(others >> 2 * s)).bit_count() for s in self.shifts))


# ---- puzzles ----------------------------------------------------------------------------------------------
def shortest(
    start: State, neighbors: Callable[[State], Iterable[tuple[str, State]]], solved: Callable[[State], bool]
) -> list[str]:
    """The moves of a shortest path from `start` to a solved state; empty if there is no path."""
    ways: dict[State, list[str]] = {start: []}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if solved(state):
            return ways[state]
        for move, after in neighbors(state):
            if after not in ways:
                ways[after] = [*ways[state], move]
                waiting.append(after)
    return []


def lights_out(lit: Sequence[int], size: int) -> list[int]:
    """The fewest lights to press so that all are out, by elimination modulo 2; empty if no set of lights does it."""
    count = size * size
    lines = [(_pressed_by(cell, size), lit[cell]) for cell in range(count)]
    pivots: list[int] = []
    for column in range(count):
        found = next((row for row in range(len(pivots), count) if lines[row][0] >> column & 1), None)
        if found is None:
            continue
        place = len(pivots)
        lines[place], lines[found] = lines[found], lines[place]
        for row in range(count):
            if row != place and lines[row][0] >> column & 1:
                lines[row] = (lines[row][0] ^ lines[place][0], lines[row][1] ^ lines[place][1])
        pivots.append(column)
    if any(wanted for _, wanted in lines[len(pivots) :]):
        return []
    free = [column for column in range(count) if column not in pivots]
    best: list[int] | None = None
    for chosen in itertools.product((0, 1), repeat=min(len(free), 8)):
        pressed = [column for column, on in zip(free, chosen, strict=False) if on]
        for row, column in enumerate(pivots):
            if (lines[row][1] + sum(lines[row][0] >> one & 1 for one, on in zip(free, chosen, strict=False) if on)) % 2:
                pressed.append(column)
        if best is None or len(pressed) < len(best):
            best = pressed
    return sorted(best or [])


def _pressed_by(cell: int, size: int) -> int:
    """The lights whose press changes this one, as bits."""
    row, column = divmod(cell, size)
    near = ((row, column), (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    return sum(1 << (r * size + c) for r, c in near if 0 <= r < size and 0 <= c < size)


def peg_jumps(board: tuple[bool, ...], moves: Sequence[tuple[int, int, int]]) -> tuple[int, int] | None:
    """A jump, as (start, end), from which the puzzle can still end with a single peg; None if there is none."""
    pegs = sum(1 << hole for hole, peg in enumerate(board) if peg)
    return _first_jump(pegs, tuple(moves))


@functools.cache
def _first_jump(pegs: int, moves: tuple[tuple[int, int, int], ...]) -> tuple[int, int] | None:
    if pegs.bit_count() == 1:
        return (0, 0)
    for start, over, end in moves:
        if pegs >> start & 1 and pegs >> over & 1 and not pegs >> end & 1:
            after = pegs & ~(1 << start) & ~(1 << over) | 1 << end
            if _first_jump(after, moves) is not None:
                return start, end
    return None
