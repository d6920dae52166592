"""The first verifier: six checks that a whole plan passes or fails. The second verifier is in `episode`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from palaestra.envs.worlds.travel.country import MORNING, STOPS, Country, Hotel, Ticket, minutes
from palaestra.envs.worlds.travel.trip import Booking, Plan, Request, Visit, cost, leg_of

CHECKS = ("covered", "overlap", "transfers", "opening", "budget", "wishes")
DAY, HOUR = 24 * 60, 60


class Event(NamedTuple):
    """A ride, a visit or a night: its first and last minute since day 0, and the places where it begins and ends."""

    start: int
    end: int
    origin: tuple[int, str]
    target: tuple[int, str]


def checks(country: Country, request: Request, plan: Plan) -> dict[str, bool]:
    """Whether a plan passes each of `CHECKS`.

    covered: each leg has one ticket, each stay has one hotel, and there are no others.
    overlap: no two events overlap.
    transfers: the traveler can reach each event in time after the one before. A night is from midnight to 6 o'clock.
    opening: sights are open during visits.
    budget, wishes: the budget and the other wishes are fulfilled.
    """
    pairs = _pairs(events(request, plan))
    visits = [one for one in plan if isinstance(one, Visit)]
    return {
        "covered": _covered(request, plan),
        "overlap": not any(_overlap(*pair) for pair in pairs),
        "transfers": all(_overlap(*pair) or _reached(country, *pair) for pair in pairs),
        "opening": all(is_open(one) for one in visits),
        "budget": request.budget is None or cost(request, plan) <= request.budget,
        "wishes": _wishes(request, plan),
    }


def events(request: Request, plan: Iterable[Booking]) -> list[Event]:
    """The events of a plan in order of time: rides, visits, and each night in a hotel from midnight to `MORNING`."""
    found: list[Event] = []
    for one in plan:
        if isinstance(one, Ticket):
            place, base = STOPS[one.mode], one.day * DAY
            found.append(
                Event(base + one.leaves * HOUR, base + one.arrives * HOUR, (one.start, place), (one.end, place))
            )
        elif isinstance(one, Visit):
            start, where = one.day * DAY + one.hour * HOUR, (one.sight.town, one.sight.kind)
            found.append(Event(start, start + one.sight.hours * HOUR, where, where))
        else:
            found += _nights(request, one)
    return sorted(found)


def possible(country: Country, found: list[Event]) -> bool:
    """Whether no events overlap and each can be reached in time. `found` is in order of time."""
    return all(not _overlap(*pair) and _reached(country, *pair) for pair in _pairs(found))


def is_open(visit: Visit) -> bool:
    """Whether the sight is open during the whole visit."""
    return visit.sight.opens <= visit.hour and visit.hour + visit.sight.hours <= visit.sight.closes


def _nights(request: Request, hotel: Hotel) -> list[Event]:
    where = (hotel.town, hotel.place)
    stays = [stop for stop in request.stops if (stop.town, stop.first) == (hotel.town, hotel.day)]
    days = range(stays[0].first + 1, stays[0].last + 1) if stays else ()
    return [Event(day * DAY, day * DAY + MORNING * HOUR, where, where) for day in days]


def _pairs(found: list[Event]) -> list[tuple[Event, Event]]:
    return list(zip(found, found[1:], strict=False))


def _overlap(one: Event, other: Event) -> bool:
    return one.end > other.start


def _reached(country: Country, one: Event, other: Event) -> bool:
    (town, start), (there, end) = one.target, other.origin
    return town == there and one.end + minutes(country, town, start, end) <= other.start


def _covered(request: Request, plan: Plan) -> bool:
    legs = Counter(leg_of(one) for one in plan if isinstance(one, Ticket))
    beds = Counter((one.town, one.day) for one in plan if isinstance(one, Hotel))
    return legs == Counter(request.legs) and beds == Counter((stop.town, stop.first) for stop in request.stops)


def _wishes(request: Request, plan: Plan) -> bool:
    """Whether the plan fulfills all wishes except the budget."""
    for one in plan:
        if isinstance(one, Hotel) and one.stars < request.stars:
            return False
        if isinstance(one, Ticket):
            early = request.leave is not None and leg_of(one) == request.legs[0] and one.leaves < request.leave
            late = request.arrive is not None and leg_of(one) == request.legs[-1] and one.arrives > request.arrive
            if early or late or (request.trains and one.mode != "train"):
                return False
    seen = {(one.sight.town, one.sight.kind) for one in plan if isinstance(one, Visit)}
    return request.sight is None or request.sight in seen
