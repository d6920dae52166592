"""The state of an episode, and what each act does to it. The second verifier is part of it: it counts acts that state
what no answer had shown.

An act that cannot be done raises ToolError, whose text the agent reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.envs.worlds.travel.country import (
    MODES,
    Country,
    Hotel,
    Sight,
    Ticket,
    hotels,
    known_places,
    minutes,
    quoted,
    sights,
    tickets,
)
from palaestra.envs.worlds.travel.trip import Booking, Plan, Request, Visit
from palaestra.tools.tool import ToolError

Query = tuple[Any, ...]  # the tool and its arguments; towns are numbers
Offer = Ticket | Hotel | Sight
LISTS = {"train": "trains", "flight": "flights", "hotel": "hotels", "sight": "pois"}
LATEST = 30  # the last day that a query may name


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode.

    Attributes:
        shown: queries whose answers the agent sees. It can book what they list.
        untrue: number of acts so far with a statement that no answer had shown.
        said: the error of the last act.
    """

    country: Country
    request: Request
    seed: int
    noise: float = 0.0
    stale: float = 0.0
    plan: Plan = ()
    shown: tuple[Query, ...] = ()
    untrue: int = 0
    said: str = ""
    turn: int = 0
    done: bool = False


def offers(country: Country, query: Query) -> tuple[Offer, ...]:
    """The offers that the answer to a query lists; none for `route`."""
    match query:
        case ("trains", a, b, day):
            return tickets(country, "train", a, b, day)
        case ("flights", a, b, day):
            return tickets(country, "flight", a, b, day)
        case ("hotels", town, day):
            return hotels(country, town, day)
        case ("pois", town):
            return sights(country, town)
    return ()


def prices(state: State, query: Query) -> tuple[int, ...]:
    """The prices that the answer to a query shows, which may be those of another day."""
    today = tuple(one.price for one in offers(state.country, query))
    return quoted(state.country, tuple(map(str, query)), today, state.stale)


def query_of(offer: Offer) -> Query:
    """The query whose answer lists the offer."""
    if isinstance(offer, Ticket):
        return (LISTS[offer.mode], offer.start, offer.end, offer.day)
    return ("hotels", offer.town, offer.day) if isinstance(offer, Hotel) else ("pois", offer.town)


def price_shown(state: State, offer: Offer) -> int | None:
    """The price of an offer that the agent sees; None if it does not see the offer."""
    query = query_of(offer)
    return prices(state, query)[offer.number - 1] if query in state.shown else None


def latest(state: State, tool: str) -> Query | None:
    """The last query of a tool whose offers can still be booked; None if there is none."""
    return next((query for query in reversed(state.shown) if query[0] == tool), None)


# ---- acts -------------------------------------------------------------------------------------------------
def ask(state: State, query: Query, *, keep: bool) -> State:
    """Ask for a list of offers or for a way.

    Args:
        keep: whether earlier answers of the same tool stay. Answers of `route` always stay.

    Raises: ToolError, if the query has no answer.
    """
    _refuse(state.country, query)
    kept = [one for one in state.shown if one != query and (keep or query[0] == "route" or one[0] != query[0])]
    return replace(state, shown=(*kept, query))


def book(state: State, kind: str, number: int, price: int | None) -> State:
    """Book a train, a flight or a hotel of the last list of its kind. The lists of rides, or of hotels, disappear."""
    offer = _chosen(state, kind, number)
    if isinstance(offer, Sight):
        raise ToolError("a sight is visited")
    gone = ("trains", "flights") if kind in MODES else ("hotels",)
    return _take(state, (*state.plan, offer), gone, offer, price)


def visit(state: State, number: int, day: int, hour: int, price: int | None) -> State:
    """Book a visit to a sight of the last list. The list and the ways disappear."""
    sight = _chosen(state, "sight", number)
    if not isinstance(sight, Sight):
        raise ToolError("only sights are visited")
    return _take(state, (*state.plan, Visit(sight, day, hour)), ("pois", "route"), sight, price)


def undo(state: State) -> State:
    """Remove the last booking."""
    if not state.plan:
        raise ToolError("nothing is booked")
    return replace(state, plan=state.plan[:-1])


def submit(state: State, items: list[Mapping[str, Any]], codes: Mapping[str, int], *, priced: bool) -> State:
    """Hand in a whole plan, which ends the episode. An offer or a price that was not shown makes the act untrue.

    Args:
        items: each has `id`; with `priced` also `price`; a sight also `day` and `hour`.
        codes: letter of a town → its number.
    """
    plan: list[Booking] = []
    true = True
    for item in items:
        offer = decoded(state.country, item["id"], codes)
        if offer is None:
            raise ToolError(f"there is no {str(item['id'])[:20]}")
        if priced and "price" not in item:
            raise ToolError(f"{item['id']} has no price")
        shown = price_shown(state, offer)
        true = true and shown is not None and item.get("price", shown) == shown
        if isinstance(offer, Sight):
            if "day" not in item or "hour" not in item:
                raise ToolError(f"{item['id']} has no day or no hour")
            plan.append(Visit(offer, item["day"], item["hour"]))
        else:
            plan.append(offer)
    return replace(state, plan=tuple(plan), untrue=state.untrue + (not true), done=True)


def _take(state: State, plan: Plan, gone: tuple[str, ...], offer: Offer, price: int | None) -> State:
    true = price is None or price == price_shown(state, offer)
    kept = tuple(query for query in state.shown if query[0] not in gone)
    return replace(state, plan=plan, shown=kept, untrue=state.untrue + (not true))


def _chosen(state: State, kind: str, number: int) -> Offer:
    query = latest(state, LISTS[kind])
    if query is None:
        raise ToolError(f"no {LISTS[kind]} are listed")
    found = offers(state.country, query)
    if not 1 <= number <= len(found):
        raise ToolError(f"there is no {kind} {number}")
    return found[number - 1]


def _refuse(country: Country, query: Query) -> None:
    """Raises: ToolError, for a query that has no answer."""
    tool, *rest = query
    if tool in ("trains", "flights") and rest[0] == rest[1]:
        raise ToolError("start and end are the same town")
    if tool in ("trains", "flights", "hotels") and not 1 <= rest[-1] <= LATEST:
        raise ToolError(f"days go from 1 to {LATEST}")
    if tool == "route":
        for place in rest[1:]:
            if place not in known_places(country, rest[0]):
                raise ToolError(f"there is no {str(place)[:20]} here")


# ---- codes ------------------------------------------------------------------------------------------------
def code(offer: Offer, letters: tuple[str, ...]) -> str:
    """The code of an offer in whole plans: `tbo2-1` is the first train from b… to o… on day 2."""
    if isinstance(offer, Ticket):
        return f"{offer.mode[0]}{letters[offer.start]}{letters[offer.end]}{offer.day}-{offer.number}"
    if isinstance(offer, Hotel):
        return f"h{letters[offer.town]}{offer.day}-{offer.number}"
    return f"s{letters[offer.town]}-{offer.number}"


def decoded(country: Country, text: Any, codes: Mapping[str, int]) -> Offer | None:
    """The offer of a code, even if it was not shown; None if there is none."""
    head, _, number = text.partition("-") if isinstance(text, str) and len(text) < 20 else ("", "", "")
    letters = [letter for letter in head[1:] if not letter.isdigit()]
    day = head[1 + len(letters) :]
    if any(letter not in codes for letter in letters) or not (number.isdecimal() and number.isascii()):
        return None
    towns = [codes[letter] for letter in letters]
    tool = {"t": "trains", "f": "flights", "h": "hotels", "s": "pois"}.get(head[:1], "")
    shape = {"trains": 2, "flights": 2, "hotels": 1, "pois": 1}.get(tool)
    query: Query = (tool, *towns, *([int(day)] if day.isdecimal() and day.isascii() else []))
    if shape != len(towns) or len(query) != 1 + shape + (tool != "pois"):
        return None
    try:
        _refuse(country, query)
    except ToolError:
        return None
    found = offers(country, query)
    return found[int(number) - 1] if 1 <= int(number) <= len(found) else None


def way(state: State, query: Query) -> int:
    """The answer to a query of `route`, in minutes."""
    return minutes(state.country, *query[1:])
