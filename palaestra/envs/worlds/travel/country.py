"""Countries: towns, timetables, hotels, sights and ways in towns, each drawn from a seed and what is asked.

Knows numbers; towns are numbers too. Knows nothing of requests, plans or words. The same query has the same answer,
in whatever order things are asked.
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
STOPS = {"train": STATION, "flight": AIRPORT}  # where one leaves and arrives
GRID = 8  # towns lie on a square of so many places
MORNING, EVENING = 6, 23  # nothing leaves before, nothing arrives after


@dataclass(frozen=True, slots=True)
class Country:
    """What everything in a country is drawn from.

    Args:
        tickets: trains, and flights, between two towns on a day. hotels, sights: in each town.
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
    """A hotel, for who arrives on a day. `price` is that of a night."""

    town: int
    day: int
    number: int
    stars: int
    price: int

    @property
    def place(self) -> str:
        """Its name among the places of the town."""
        return f"hotel{self.number}"


@dataclass(frozen=True, slots=True)
class Sight:
    """Something to see: a visit takes `hours` between `opens` and `closes`."""

    town: int
    number: int
    kind: str
    opens: int
    closes: int
    hours: int
    price: int


@functools.lru_cache(maxsize=4096)
def places(country: Country) -> tuple[tuple[int, int], ...]:
    """Where the towns lie, each at a place of its own."""
    spots = np.random.default_rng(derive(country.seed, "towns")).permutation(GRID * GRID)[: country.towns]
    return tuple((int(spot) // GRID, int(spot) % GRID) for spot in spots)


def distance(country: Country, start: int, end: int) -> int:
    """Between two towns, rounded, 1 to 10."""
    (a, b), (c, d) = places(country)[start], places(country)[end]
    return max(1, round(math.hypot(a - c, b - d)))


@functools.lru_cache(maxsize=65536)
def tickets(country: Country, mode: str, start: int, end: int, day: int) -> tuple[Ticket, ...]:
    """All trains, or flights, from a town to another on a day, by hour. Flights are faster and often cost more."""
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
    """The hotels of a town; prices depend on the day of arrival. No two have as many stars."""
    stars = np.random.default_rng(derive(country.seed, "hotels", town)).permutation(5)[: country.hotels] + 1
    prices = np.random.default_rng(derive(country.seed, "hotels", town, day)).uniform(0.6, 1.4, len(stars))
    return tuple(
        Hotel(town, day, number, int(count), round(float((10 + 12 * count) * factor)))
        for number, (count, factor) in enumerate(zip(stars, prices, strict=True), start=1)
    )


@functools.lru_cache(maxsize=65536)
def sights(country: Country, town: int) -> tuple[Sight, ...]:
    """The sights of a town, each of another kind."""
    draw = np.random.default_rng(derive(country.seed, "sights", town))
    kinds = [SIGHTS[int(number)] for number in draw.permutation(len(SIGHTS))[: country.sights]]
    found = []
    for number, kind in enumerate(kinds, start=1):
        opens, hours = int(draw.integers(8, 13)), int(draw.integers(1, 4))
        closes = min(opens + hours + int(draw.integers(2, 7)), 21)
        found.append(Sight(town, number, kind, opens, closes, hours, int(draw.integers(0, 16))))
    return tuple(found)


def known_places(country: Country, town: int) -> list[str]:
    """The names of all places of a town between which there are ways."""
    rooms = [f"hotel{number}" for number in range(1, country.hotels + 1)]
    return [STATION, AIRPORT, *rooms, *(sight.kind for sight in sights(country, town))]


@functools.lru_cache(maxsize=65536)
def minutes(country: Country, town: int, start: str, end: str) -> int:
    """How long the way between two places of a town takes. The airport lies outside."""
    if start == end:
        return 0
    (a, b), (c, d) = (_spot(country, town, name) for name in (start, end))
    return 5 + 5 * (abs(a - c) + abs(b - d)) + 30 * (AIRPORT in (start, end))


def _spot(country: Country, town: int, name: str) -> tuple[int, int]:
    spot = derive(country.seed, "place", town, name) % 100
    return spot // 10, spot % 10


def quoted(country: Country, query: tuple[str, ...], prices: tuple[int, ...], stale: float) -> tuple[int, ...]:
    """The prices that an answer tells: with probability `stale`, for each query anew, those of another day."""
    if not stale or derive(country.seed, "stale", *query) / 2**63 >= stale:
        return prices
    factors = np.random.default_rng(derive(country.seed, "old prices", *query)).uniform(0.6, 1.4, len(prices))
    return tuple(round(price * float(factor)) + 1 for price, factor in zip(prices, factors, strict=True))
