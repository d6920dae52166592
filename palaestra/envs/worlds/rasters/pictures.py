"""Pictures for `rasters`: smooth ones for jigsaws, spots and digits for questions, and the tiles of a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from palaestra.data import derive

Kind = Literal["jigsaw", "count", "color", "digit"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS = 10  # number of values in a smooth picture
COLORS = ("black", "red", "green", "blue")
SHADES = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)  # red, green and blue of each color
UNSEEN = 128  # the gray of what an image does not show
SIDE = 8  # places in a row of a picture for questions
SPECKS = 0.1  # share of places away from a digit that have another color
GLYPHS = {
    0: "111 101 101 101 111", 1: "010 110 010 010 111", 2: "111 001 111 100 111", 3: "111 001 111 001 111",
    4: "101 101 111 001 001", 5: "111 100 111 001 111", 6: "111 100 111 101 111", 7: "111 001 010 010 010",
    8: "111 101 111 101 111", 9: "111 101 111 001 111",
}  # fmt: skip
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One picture and what is asked about it.

    Attributes:
        pixels: rows of values, of a jigsaw in the right order. tiles: number in a row of a jigsaw; 1 for questions.
        order: which tile of the whole picture lies at each place at the start.
        subject: index of the color to count. answer: the right answer to a question.
    """

    kind: Kind
    pixels: tuple[tuple[int, ...], ...]
    tiles: int = 1
    order: Order = (0,)
    subject: int = 0
    answer: str = ""


def smooth(side: int, seed: int) -> np.ndarray:
    """int (side, side): values that rise or fall along both axes, at two different rates that change on the way."""
    generator = np.random.default_rng(derive(seed, "smooth"))
    down, right = generator.choice([-1, 1], 2) * generator.permutation([1.0, generator.uniform(0.35, 0.6)])
    rows, columns = (np.mgrid[:side, :side][axis] / (side - 1) for axis in (0, 1))
    bends = generator.uniform(0.85, 1.2, 2)
    values = down * rows ** bends[0] + right * columns ** bends[1]
    values = (values - values.min()) / (values.max() - values.min())
    return np.rint(values * (LEVELS - 1)).astype(int)


def spotted(seed: int) -> np.ndarray:
    """int (8, 8): a random color at each place. Each picture has random shares of the colors."""
    generator = np.random.default_rng(derive(seed, "spots"))
    return generator.choice(len(COLORS), size=(SIDE, SIDE), p=generator.dirichlet([1.5] * len(COLORS)))


def glyph(digit: int, seed: int) -> np.ndarray:
    """int (8, 8): a digit of 3 × 5 places in one color, somewhere on black. Some places away from it have another
    color."""
    generator = np.random.default_rng(derive(seed, "glyph"))
    shape = np.array([[int(mark) for mark in row] for row in GLYPHS[digit].split()])
    top, left = (int(generator.integers(SIDE - length + 1)) for length in shape.shape)
    color, other = (int(number) + 1 for number in generator.permutation(len(COLORS) - 1)[:2])
    picture = other * (generator.random((SIDE, SIDE)) < SPECKS).astype(int)
    picture[max(top - 1, 0) : top + 6, max(left - 1, 0) : left + 4] = 0
    picture[top : top + 5, left : left + 3] = color * shape
    return picture


def problem(kind: Kind, tiles: int, seed: int) -> Problem:
    """The problem of a seed."""
    generator = np.random.default_rng(derive(seed, kind))
    if kind == "jigsaw":
        orders = [order for order in itertools.islice(_orders(tiles * tiles, generator), 64) if order != _right(tiles)]
        return Problem(kind, _rows(smooth(4 * tiles if tiles == 2 else 3 * tiles, seed)), tiles, orders[0])
    if kind == "digit":
        digit = int(generator.integers(10))
        return Problem(kind, _rows(glyph(digit, seed)), answer=str(digit))
    picture, subject = spotted(seed), int(generator.integers(len(COLORS)))
    counts = [int((picture == color).sum()) for color in range(len(COLORS))]
    answer = str(counts[subject]) if kind == "count" else COLORS[int(np.argmax(counts))]
    return Problem(kind, _rows(picture), subject=subject, answer=answer)


def _orders(count: int, generator: np.random.Generator) -> Iterator[Order]:
    while True:
        yield tuple(int(place) for place in generator.permutation(count))


def _right(tiles: int) -> Order:
    return tuple(range(tiles * tiles))


def _rows(picture: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(value) for value in row) for row in picture)


def drawn(pixels: np.ndarray, *, colored: bool, scale: int = 1) -> np.ndarray:
    """uint8 (scale · side, scale · side, 3): values as an image, in colors, or in grays from black to white."""
    shades = SHADES if colored else np.repeat(np.arange(LEVELS, dtype=np.uint8)[:, None] * (255 // (LEVELS - 1)), 3, 1)
    return shades[pixels].repeat(scale, 0).repeat(scale, 1)


# ---- tiles ------------------------------------------------------------------------------------------------
def tile(pixels: np.ndarray, tiles: int, number: int) -> np.ndarray:
    """A tile of a picture that is cut into tiles × tiles. Tiles are numbered row by row, from 0."""
    side = len(pixels) // tiles
    row, column = divmod(number, tiles)
    return pixels[row * side : (row + 1) * side, column * side : (column + 1) * side]


def arranged(pixels: np.ndarray, tiles: int, order: Order) -> np.ndarray:
    """The picture with tile `order[k]` at place k."""
    placed = [tile(pixels, tiles, number) for number in order]
    return np.block([placed[row * tiles : (row + 1) * tiles] for row in range(tiles)])


def mismatch(shown: np.ndarray, tiles: int) -> int:
    """The sum of the absolute differences of values across all seams between tiles."""
    side = len(shown) // tiles
    seams = range(side, len(shown), side)
    across = sum(int(np.abs(shown[place] - shown[place - 1]).sum()) for place in seams)
    return across + sum(int(np.abs(shown[:, place] - shown[:, place - 1]).sum()) for place in seams)


def best_order(shown: np.ndarray, tiles: int) -> Order:
    """The arrangement of the shown tiles with the least mismatch. It tries all of them, which suits 2 × 2 tiles."""
    return min(
        itertools.permutations(range(tiles * tiles)), key=lambda order: mismatch(arranged(shown, tiles, order), tiles)
    )
