"""Write the observations: the request, the plan so far, and the answers to queries."""

from __future__ import annotations

from palaestra.envs.kit.words import Vocabulary
from palaestra.envs.worlds.travel.country import Hotel, Ticket
from palaestra.envs.worlds.travel.episode import Offer, Query, State, code, offers, prices, way
from palaestra.envs.worlds.travel.trip import Booking, Request, cost, price_of
from palaestra.envs.worlds.travel.words import TOWNS, town_names


def tell(state: State, words: Vocabulary, *, coded: bool, letter: str | None = None) -> str:
    """The text of an observation.

    Args:
        coded: whether the offers of lists have codes in place of numbers.
        letter: the request in other words; None: two short lines.
    """
    lines = [tell_request(state.request, words) if letter is None else letter]
    if state.plan:
        booked = ", ".join(_booked(state.request, one, words) for one in state.plan)
        lines.append(f"plan: {booked}. spent {cost(state.request, state.plan)}.")
    lines += [_answer(state, query, words, coded=coded) for query in state.shown]
    if state.said:
        lines.append(state.said)
    return "\n".join(lines)


def tell_request(request: Request, words: Vocabulary) -> str:
    """The trip and its wishes in two lines."""
    trip = [f"day {leg.day} {words.say(TOWNS[leg.start])} to {words.say(TOWNS[leg.end])}" for leg in request.legs]
    trip += [] if request.until is None else [f"stay until day {request.until}"]
    wishes = []
    if request.trains:
        wishes.append(f"no {words.say('flights')}")
    if request.stars:
        wishes.append(f"{request.stars} stars or more")
    if request.sight is not None:
        wishes.append(f"see {words.say(request.sight[1])} in {words.say(TOWNS[request.sight[0]])}")
    if request.leave is not None:
        wishes.append(f"leave from {request.leave} on")
    if request.arrive is not None:
        wishes.append(f"arrive by {request.arrive}")
    if request.budget is not None:
        wishes.append(f"budget {request.budget}")
    return f"{', '.join(trip)}.\nwishes: {', '.join(wishes) or 'none'}."


def ask_words(query: Query, words: Vocabulary) -> str:
    """A query as text, with which its answer begins."""
    tool, *rest = query
    count = {"trains": 2, "flights": 2}.get(tool, 1)
    named = [words.say(TOWNS[town]) for town in rest[:count]]
    more = [words.say(one) if isinstance(one, str) else str(one) for one in rest[count:]]
    return " ".join((words.say(tool), *named, *more))


def _answer(state: State, query: Query, words: Vocabulary, *, coded: bool) -> str:
    if query[0] == "route":
        return f"{ask_words(query, words)}: {way(state, query)} minutes"
    letters = tuple(town[0] for town in town_names(words))
    told = [
        f"{code(one, letters) if coded else one.number} {_offer(one, price, words)}"
        for one, price in zip(offers(state.country, query), prices(state, query), strict=True)
    ]
    return f"{ask_words(query, words)}: {', '.join(told)}"


def _offer(one: Offer, price: int, words: Vocabulary) -> str:
    if isinstance(one, Ticket):
        return f"{one.leaves} to {one.arrives} for {price}"
    if isinstance(one, Hotel):
        return f"{one.stars} stars for {price}"
    hours = f"{one.hours} hour{'s' * (one.hours > 1)}"
    return f"{words.say(one.kind)} open {one.opens} to {one.closes} takes {hours} for {price}"


def _booked(request: Request, one: Booking, words: Vocabulary) -> str:
    price = price_of(request, one)
    if isinstance(one, Ticket):
        ends = f"{words.say(TOWNS[one.start])} to {words.say(TOWNS[one.end])}"
        return f"{words.say(one.mode)} day {one.day} {ends} {one.leaves} to {one.arrives} for {price}"
    if isinstance(one, Hotel):
        return f"{words.say(one.place, TOWNS[one.town])} day {one.day} {one.stars} stars for {price}"
    hours = f"{one.hour} to {one.hour + one.sight.hours}"
    return f"{words.say(one.sight.kind, TOWNS[one.sight.town])} day {one.day} {hours} for {price}"
