"""The expert's next act, and all acts that make sense, as calls of tools in the plain vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from palaestra.envs.worlds.travel.country import MODES, STOPS, Hotel, Sight, Ticket, hotels, sights, tickets
from palaestra.envs.worlds.travel.episode import LISTS, Offer, Query, State, code, latest, offers, prices, query_of
from palaestra.envs.worlds.travel.planner import completed
from palaestra.envs.worlds.travel.trip import Booking, Plan, Visit, leg_of

Act = tuple[str, dict[str, Any]]  # a tool and its arguments; towns are numbers
NAMES = {  # tool → its arguments, in the order of a query
    "trains": ("start", "end", "day"),
    "flights": ("start", "end", "day"),
    "hotels": ("town", "day"),
    "pois": ("town",),
    "route": ("town", "start", "end"),
}


def asking(query: Query) -> Act:
    """The call that makes a query."""
    return query[0], dict(zip(NAMES[query[0]], query[1:], strict=True))


def next_act(state: State, letters: tuple[str, ...], *, whole: bool, priced: bool) -> Act:
    """The expert's next act. It books the cheapest plan in the order of the trip, and looks up each offer first.

    If no right plan has all bookings so far, it removes the last one.
    """
    target = completed(state.country, state.request, state.plan)
    if target is None:
        return ("undo", {}) if state.plan else ("plan", {"items": []}) if whole else ("done", {})
    for place, one in enumerate(target):
        if one in state.plan:
            continue
        for query in _needed(state, target, place):
            if query not in state.shown:
                return asking(query)
        if not whole:
            return _booking(state, one, priced=priced)
    return ("plan", {"items": items_of(state, target, letters, priced=priced)}) if whole else ("done", {})


def items_of(state: State, plan: Sequence[Booking], letters: tuple[str, ...], *, priced: bool) -> list[dict[str, Any]]:
    """The items of a plan, as the tool `plan` takes them."""
    items = []
    for one in plan:
        offer = one.sight if isinstance(one, Visit) else one
        item: dict[str, Any] = {"id": code(offer, letters)}
        item |= {"price": _price(state, offer)} if priced else {}
        item |= {"day": one.day, "hour": one.hour} if isinstance(one, Visit) else {}
        items.append(item)
    return items


def sensible(state: State, letters: tuple[str, ...], *, whole: bool, priced: bool) -> Iterator[Act]:
    """The acts that make sense: queries for what is not booked yet, bookings of what is listed, handing in."""
    for query in _queries(state):
        yield asking(query)
    if whole:
        yield from _plans(state, letters, priced=priced)
        return
    for kind in (*MODES, "hotel"):
        listed = latest(state, LISTS[kind])
        for one in () if listed is None else offers(state.country, listed):
            if not isinstance(one, Sight):
                yield _booking(state, one, priced=priced)
    yield from _visits(state, priced=priced)
    if state.plan:
        yield "undo", {}
    yield "done", {}


# ---- the expert -------------------------------------------------------------------------------------------
def _needed(state: State, target: Plan, place: int) -> list[Query]:
    """The queries that the expert makes before a booking."""
    one = target[place]
    if isinstance(one, Ticket):
        ends = (one.start, one.end, one.day)
        return [("trains", *ends)] if state.request.trains else [("trains", *ends), ("flights", *ends)]
    if isinstance(one, Hotel):
        return [query_of(one)]
    town = one.sight.town
    came = next(ticket for ticket in target if isinstance(ticket, Ticket) and ticket.end == town)
    return [query_of(one.sight), ("route", town, STOPS[came.mode], one.sight.kind)]


def _booking(state: State, one: Booking, *, priced: bool) -> Act:
    offer = one.sight if isinstance(one, Visit) else one
    price = {"price": _price(state, offer)} if priced else {}
    if isinstance(one, Visit):
        return "visit", {"number": offer.number, "day": one.day, "hour": one.hour, **price}
    kind = one.mode if isinstance(one, Ticket) else "hotel"
    return "book", {"kind": kind, "number": offer.number, **price}


def _price(state: State, offer: Offer) -> int:
    return prices(state, query_of(offer))[offer.number - 1]


# ---- what is sensible -------------------------------------------------------------------------------------
def _queries(state: State) -> Iterator[Query]:
    """Queries for legs and hotels that are not booked yet, for sights, and for the ways to listed sights."""
    booked = {leg_of(one) for one in state.plan if isinstance(one, Ticket)}
    beds = {(one.town, one.day) for one in state.plan if isinstance(one, Hotel)}
    for leg in state.request.legs:
        if leg not in booked:
            yield from ((LISTS[mode], leg.start, leg.end, leg.day) for mode in MODES)
    for stop in state.request.stops:
        if (stop.town, stop.first) not in beds:
            yield "hotels", stop.town, stop.first
        yield "pois", stop.town
    for query in state.shown:
        if query[0] == "pois":
            for one in sights(state.country, query[1]):
                yield from (("route", query[1], place, one.kind) for place in STOPS.values())


def _visits(state: State, *, priced: bool) -> Iterator[Act]:
    query = latest(state, LISTS["sight"])
    stops = [stop for stop in state.request.stops if query is not None and stop.town == query[1]]
    if query is None or not stops:
        return
    for one in sights(state.country, query[1]):
        for day in range(stops[0].first, stops[0].last + 1):
            for hour in range(one.opens, one.closes - one.hours + 1):
                yield _booking(state, Visit(one, day, hour), priced=priced)


def _plans(state: State, letters: tuple[str, ...], *, priced: bool) -> Iterator[Act]:
    """Plans of the cheapest and of the most expensive offers shown, and the expert's plan once all of it was shown."""
    for cheap in (True, False):
        plan: list[Booking] = []
        for leg in state.request.legs:
            modes = [mode for mode in MODES if (LISTS[mode], leg.start, leg.end, leg.day) in state.shown]
            rides = [one for mode in modes for one in tickets(state.country, mode, leg.start, leg.end, leg.day)]
            plan += sorted(rides, key=lambda one: one.price, reverse=not cheap)[:1]
        for stop in state.request.stops:
            if ("hotels", stop.town, stop.first) in state.shown:
                beds = hotels(state.country, stop.town, stop.first)
                plan += sorted(beds, key=lambda one: one.price, reverse=not cheap)[:1]
        yield "plan", {"items": items_of(state, plan, letters, priced=priced)}
    act = next_act(state, letters, whole=True, priced=priced)
    if act[0] == "plan":
        yield act
