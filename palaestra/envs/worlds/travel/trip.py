"""Trips: what is requested, what a plan consists of, and what it costs.

Knows countries' tickets, hotels and sights. Knows nothing of how requests are drawn, judged or told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from palaestra.envs.worlds.travel.country import Hotel, Sight, Ticket

Wish = Literal["budget", "trains", "stars", "sight", "leave", "arrive"]
WISHES: tuple[Wish, ...] = get_args(Wish)


@dataclass(frozen=True, slots=True)
class Visit:
    """A sight, the day, and the hour at which the visit begins."""

    sight: Sight
    day: int
    hour: int


Booking = Ticket | Hotel | Visit
Plan = tuple[Booking, ...]


@dataclass(frozen=True, slots=True)
class Leg:
    """From a town to another on a day."""

    start: int
    end: int
    day: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A town where one stays from a day until another."""

    town: int
    first: int
    last: int

    @property
    def nights(self) -> int:
        """How many nights one stays."""
        return self.last - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A trip and wishes.

    Attributes:
        legs: in order. until: the day on which the last stay ends, for trips that do not lead back.
        budget: for all. trains: no flights. stars: of each hotel at least. sight: a town and a kind to be seen there.
        leave: hour before which the first leg must not leave. arrive: hour by which the last leg must arrive.
    """

    legs: tuple[Leg, ...]
    until: int | None = None
    budget: int | None = None
    trains: bool = False
    stars: int = 0
    sight: tuple[int, str] | None = None
    leave: int | None = None
    arrive: int | None = None

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Where one stays, in order."""
        days = [leg.day for leg in self.legs[1:]] + ([] if self.until is None else [self.until])
        return tuple(Stop(leg.end, leg.day, last) for leg, last in zip(self.legs, days, strict=False))


def leg_of(ticket: Ticket) -> Leg:
    """The leg that a ticket serves."""
    return Leg(ticket.start, ticket.end, ticket.day)


def nights(request: Request, hotel: Hotel) -> int:
    """For how many nights a hotel is booked; 1 where nobody stays."""
    return next((stop.nights for stop in request.stops if (stop.town, stop.first) == (hotel.town, hotel.day)), 1)


def price_of(request: Request, booking: Booking) -> int:
    """What a booking costs: of a hotel, all nights."""
    if isinstance(booking, Ticket):
        return booking.price
    return booking.sight.price if isinstance(booking, Visit) else booking.price * nights(request, booking)


def cost(request: Request, plan: Iterable[Booking]) -> int:
    """What a plan costs."""
    return sum(price_of(request, booking) for booking in plan)
