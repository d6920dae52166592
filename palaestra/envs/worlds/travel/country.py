"""Countries: towns, timetables, hotels, sights, and the ways in towns. Towns are numbers.

Each is drawn from the country's seed and the arguments of the query, so that the order of queries makes no difference.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from palaestra.data import derive

MODES = ("train", "flight")
SIGHTS = ("museum", "castle", "market", "park", "tower", "zoo")
STATION, AIRPORT = "station", "airport"
STOPS = {"train": STATION, "flight": AIRPORT}  # the place in a town where rides begin and end
GRID = 8  # the towns lie on a grid of 8 × 8 positions
MORNING, EVENING = 6, 23  # hours: nothing leaves before the first, nothing arrives after the second


@dataclass(frozen=True, slots=True)
class Country:
    """The numbers that everything in a country is drawn from.

    Args:
        tickets: number of trains, and of flights, between two towns on a day.
        hotels, sights: number in each town.
    """

    seed: int
    towns: int
    tickets: int
    hotels: int
    sights: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """A train or a flight. Times are full hours."""

    mode: str
    start: int
    end: int
    day: int
    number: int
    leaves: int
    arrives: int
    price: int


@dataclass(frozen=True, slots=True)
class Hotel:
    """A hotel, as offered for an arrival on a day. `price` is for one night."""

    town: int
    day: int
    number: int
    stars: int
    price: int

    @property
    def place(self) -> str:
        """The hotel's name as a place of the town, such as `hotel2`."""
        return f"hotel{self.number}"


@dataclass(frozen=True, slots=True)
class Sight:
    """A sight. A visit takes `hours` hours and must be between `opens` and `closes`."""

    town: int
    number: int
    kind: str
    opens: int
    closes: int
    hours: int
    price: int


@functools.lru_cache(maxsize=4096)
def places(country: Country) -> tuple[tuple[int, int], ...]:
    """The positions of the towns on the grid. No two towns have the same one."""
    spots = np.random.default_rng(derive(country.seed, "towns")).permutation(GRID * GRID)[: country.towns]
    return tuple((int(spot) // GRID, int(spot) % GRID) for spot in spots)


def distance(country: Country, start: int, end: int) -> int:
    """The distance between two towns on the grid, rounded, 1 to 10."""
    (a, b), (c, d) = places(country)[start], places(country)[end]
    return max(1, round(math.hypot(a - c, b - d)))


@functools.lru_cache(maxsize=65536)
def tickets(country: Country, mode: str, start: int, end: int, day: int) -> tuple[Ticket, ...]:
    """All trains, or flights, from one town to another on a day, by hour. Flights are faster and often cost more."""
    far = distance(country, start, end)
    hours, usual = (1 + (far + 1) // 2, 8 + 7 * far) if mode == "train" else (1 + far // 6, 30 + 5 * far)
    draw = np.random.default_rng(derive(country.seed, mode, start, end, day))
    leaves = sorted(draw.permutation(EVENING - MORNING - hours)[: country.tickets] + MORNING)
    prices = np.rint(usual * draw.uniform(0.6, 1.4, len(leaves)))
    return tuple(
        Ticket(mode, start, end, day, number, int(hour), int(hour) + hours, int(price))
        for number, (hour, price) in enumerate(zip(leaves, prices, strict=True), start=1)
    )


@functools.lru_cache(maxsize=65536)
def hotels(country: Country, town: int, day: int) -> tuple[Hotel, ...]:
    """The hotels of a town. Prices depend on the day of arrival. No two hotels have the same number of stars."""
    stars = np.random.default_rng(derive(country.seed, "hotels", town)).permutation(5)[: country.hotels] + 1
    prices = np.random.default_rng(derive(country.seed, "hotels", town, day)).uniform(0.6, 1.4, len(stars))
    return tuple(
        Hotel(town, day, number, int(count), round(float((10 + 12 * count) * factor)))
        for number, (count, factor) in enumerate(zip(stars, prices, strict=True), start=1)
    )


@functools.lru_cache(maxsize=65536)
def sights(country: Country, town: int) -> tuple[Sight, ...]:
    """The sights of a town, each of a different kind."""
    draw = np.random.default_rng(derive(country.seed, "sights", town))
    kinds = [SIGHTS[int(number)] for number in draw.permutation(len(SIGHTS))[: country.sights]]
    found = []
    for number, kind in enumerate(kinds, start=1):
        opens, hours = int(draw.integers(8, 13)), int(draw.integers(1, 4))
        closes = min(opens + hours + int(draw.integers(2, 7)), 21)
        found.append(Sight(town, number, kind, opens, closes, hours, int(draw.integers(0, 16))))
    return tuple(found)


def known_places(country: Country, town: int) -> list[str]:
    """The names of all places of a town, as `minutes` takes them."""
    rooms = [f"hotel{number}" for number in range(1, country.hotels + 1)]
    return [STATION, AIRPORT, *rooms, *(sight.kind for sight in sights(country, town))]


@functools.lru_cache(maxsize=65536)
def minutes(country: Country, town: int, start: str, end: str) -> int:
    """The minutes that the way between two places of a town takes. The airport is 30 minutes farther away."""
    if start == end:
        return 0
    (a, b), (c, d) = (_spot(country, town, name) for name in (start, end))
    return 5 + 5 * (abs(a - c) + abs(b - d)) + 30 * (AIRPORT in (start, end))


def _spot(country: Country, town: int, name: str) -> tuple[int, int]:
    spot = derive(country.seed, "place", town, name) % 100
    return spot // 10, spot % 10


def quoted(country: Country, query: tuple[str, ...], prices: tuple[int, ...], stale: float) -> tuple[int, ...]:
    """The prices that the answer to a query shows: with probability `stale` per query, those of another day."""
    if not stale or derive(country.seed, "stale", *query) / 2**63 >= stale:
        return prices
    factors = np.random.default_rng(derive(country.seed, "old prices", *query)).uniform(0.6, 1.4, len(prices))
    return tuple(round(price * float(factor)) + 1 for price, factor in zip(prices, factors, strict=True))
