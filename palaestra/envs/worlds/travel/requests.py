"""Draw a request from a seed: first a trip and a plan for it, then wishes that this plan fulfills."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from palaestra.data import derive
from palaestra.envs.worlds.travel.country import Country, Ticket, sights
from palaestra.envs.worlds.travel.planner import Weight, best
from palaestra.envs.worlds.travel.trip import Booking, Leg, Request, Wish, cost, price_of

TRIES = 200


@dataclass(frozen=True, slots=True)
class Dials:
    """The environment's options for requests, under the same names."""

    stops: tuple[int, int]
    nights: int
    back: bool
    wishes: tuple[int, int]
    kinds: tuple[Wish, ...]
    slack: float


def count_of(dials: Dials, seed: int) -> int:
    """The number of wishes that the request of a seed has."""
    fewest, most = dials.wishes
    return fewest + derive(seed, "wishes") % (most - fewest + 1)


@functools.lru_cache(maxsize=4096)
def draw_request(country: Country, dials: Dials, seed: int) -> Request | None:
    """A request that at least one plan fulfills; None if `TRIES` draws gave none."""
    for number in range(TRIES):
        draw = np.random.default_rng(derive(seed, "request", number))
        kinds = {dials.kinds[int(one)] for one in draw.permutation(len(dials.kinds))[: count_of(dials, seed)]}
        request = _trip(country, dials, draw)
        stays = [stop.town for stop in request.stops]
        town = stays[int(draw.integers(len(stays)))]
        there = sights(country, town)
        sight = (town, there[int(draw.integers(len(there)))].kind)
        stars = int(draw.integers(2, 4))
        request = replace(
            request,
            trains="trains" in kinds,
            stars=stars if "stars" in kinds else 0,
            sight=sight if "sight" in kinds else None,
        )
        plan = best(country, request, (), _whims(request, derive(seed, "whims", number)))
        if plan is not None:
            rides = [one for one in plan if isinstance(one, Ticket)]
            early, late = (int(draw.integers(2)) for _ in range(2))
            return replace(
                request,
                leave=max(rides[0].leaves - early, 0) if "leave" in kinds else None,
                arrive=min(rides[-1].arrives + late, 24) if "arrive" in kinds else None,
                budget=math.ceil(cost(request, plan) * (1 + dials.slack)) if "budget" in kinds else None,
            )
    return None


def _trip(country: Country, dials: Dials, draw: np.random.Generator) -> Request:
    fewest, most = dials.stops
    towns = [int(one) for one in draw.permutation(country.towns)[: int(draw.integers(fewest, most + 1)) + 1]]
    days = [int(draw.integers(1, 4))]
    for _ in towns[1:]:
        days.append(days[-1] + int(draw.integers(1, dials.nights + 1)))
    ends = [*towns[1:], towns[0]] if dials.back else towns[1:]
    legs = tuple(Leg(start, end, day) for start, end, day in zip(towns, ends, days, strict=False))
    return Request(legs=legs, until=None if dials.back else days[-1])


def _whims(request: Request, seed: int) -> Weight:
    """Weights of bookings: prices times random factors, so that the plan is not always the cheapest one."""

    def weight(one: Booking) -> float:
        return (price_of(request, one) + 1) * (0.5 + derive(seed, one) / 2**63)

    return weight
