"""The planner finds the cheapest right plan that contains given bookings. It searches all offers, shown or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from palaestra.envs.worlds.travel.country import MODES, Country, Hotel, Sight, Ticket, hotels, sights, tickets
from palaestra.envs.worlds.travel.trip import Booking, Leg, Plan, Request, Stop, Visit, cost, leg_of, price_of
from palaestra.envs.worlds.travel.verifier import events, is_open, possible

Weight = Callable[[Booking], float]


@functools.lru_cache(maxsize=4096)
def completed(country: Country, request: Request, booked: Plan = ()) -> Plan | None:
    """The cheapest plan with all of `booked` that passes every check, in the trip's order; None if there is none."""
    found = best(country, request, booked, lambda one: price_of(request, one))
    fits = found is not None and (request.budget is None or cost(request, found) <= request.budget)
    return found if fits else None


def best(country: Country, request: Request, booked: Plan, weight: Weight) -> Plan | None:
    """The plan of least weight with all of `booked` that passes every check but the budget; None if there is none.

    Dynamic programming: what follows a leg depends only on the leg's ticket. So the best plan up to each ticket of a
    leg extends the best plan up to one of the tickets of the leg before, by a hotel and visits.
    """
    if _stray(request, booked):
        return None
    ends: list[tuple[float, Plan, Ticket]] = []
    for place, leg in enumerate(request.legs):
        reached = []
        for ticket in _rides(country, request, leg, booked):
            before: tuple[float, Plan] | None = (0.0, ())
            if place:
                before = _between(country, request, request.stops[place - 1], ends, ticket, booked, weight)
            if before is not None:
                reached.append((before[0] + weight(ticket), (*before[1], ticket), ticket))
        ends = sorted(reached, key=lambda end: (end[0], end[2].leaves, end[2].mode))
    if request.until is None or not ends:
        return ends[0][1] if ends else None
    last = _between(country, request, request.stops[-1], ends, None, booked, weight)
    return None if last is None else last[1]


def _between(
    country: Country,
    request: Request,
    stop: Stop,
    ends: list[tuple[float, Plan, Ticket]],
    leaving: Ticket | None,
    booked: Plan,
    weight: Weight,
) -> tuple[float, Plan] | None:
    """The best plan up to the end of a stop, over all tickets to it and all its hotels, with its weight.

    `leaving`: the ticket of the next leg.
    """
    found: tuple[float, Plan] | None = None
    visits = tuple(one for one in booked if isinstance(one, Visit) and _within(stop, one))
    wanted = _wanted(country, request, stop, visits)
    fixed = [one for one in booked if isinstance(one, Hotel) and (one.town, one.day) == (stop.town, stop.first)]
    beds = fixed or [one for one in hotels(country, stop.town, stop.first) if one.stars >= request.stars]
    seen = sum(weight(one) for one in visits)
    for total, plan, ticket in ends:
        for bed in beds:
            price = total + weight(bed) + seen
            if found is not None and price >= found[0]:
                continue
            around = (ticket, bed, *visits, *(() if leaving is None else (leaving,)))
            added = _scheduled(country, request, stop, around, wanted)
            if added is not None:
                found = price, (*plan, bed, *visits, *added)
    return found


def _scheduled(
    country: Country, request: Request, stop: Stop, around: Plan, wanted: Sight | None
) -> tuple[Visit, ...] | None:
    """The earliest visit to the wanted sight that fits; an empty tuple if none is wanted; None if nothing fits."""
    if not possible(country, events(request, around)):
        return None
    if wanted is None:
        return ()
    for day in range(stop.first, stop.last + 1):
        for hour in range(wanted.opens, wanted.closes - wanted.hours + 1):
            visit = Visit(wanted, day, hour)
            if possible(country, events(request, (*around, visit))):
                return (visit,)
    return None


def _wanted(country: Country, request: Request, stop: Stop, visits: tuple[Visit, ...]) -> Sight | None:
    """The sight that must be visited at a stop and is not booked yet; None if there is none."""
    if request.sight is None or request.sight[0] != stop.town:
        return None
    kind = request.sight[1]
    if any(one.sight.kind == kind for one in visits):
        return None
    return next((one for one in sights(country, stop.town) if one.kind == kind), None)


def _rides(country: Country, request: Request, leg: Leg, booked: Plan) -> list[Ticket]:
    """The tickets of a leg that the wishes allow; if one is booked, only that one."""
    fixed = [one for one in booked if isinstance(one, Ticket) and leg_of(one) == leg]
    modes = MODES[:1] if request.trains else MODES
    every = fixed or [one for mode in modes for one in tickets(country, mode, leg.start, leg.end, leg.day)]
    return [
        one
        for one in every
        if one.mode in modes
        and not (leg == request.legs[0] and request.leave is not None and one.leaves < request.leave)
        and not (leg == request.legs[-1] and request.arrive is not None and one.arrives > request.arrive)
    ]


def _stray(request: Request, booked: Plan) -> bool:
    """Whether a booking is in no right plan: it is double, elsewhere, on another day, or against the wishes."""
    free = replace(request, budget=None)
    legs = [leg_of(one) for one in booked if isinstance(one, Ticket)]
    beds = [(one.town, one.day) for one in booked if isinstance(one, Hotel)]
    stays = {(stop.town, stop.first) for stop in free.stops}
    visits = [one for one in booked if isinstance(one, Visit)]
    return (
        len(set(legs)) < len(legs)
        or not set(legs) <= set(free.legs)
        or len(set(beds)) < len(beds)
        or not set(beds) <= stays
        or any(isinstance(one, Hotel) and one.stars < free.stars for one in booked)
        or any(not is_open(one) or not any(_within(stop, one) for stop in free.stops) for one in visits)
    )


def _within(stop: Stop, visit: Visit) -> bool:
    return visit.sight.town == stop.town and stop.first <= visit.day <= stop.last
