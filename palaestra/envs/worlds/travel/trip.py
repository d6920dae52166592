"""Requests for trips, the bookings that a plan consists of, and their cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from palaestra.envs.worlds.travel.country import Hotel, Sight, Ticket

Wish = Literal["budget", "trains", "stars", "sight", "leave", "arrive"]
WISHES: tuple[Wish, ...] = get_args(Wish)


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit to a sight: its day, and the hour at which it begins."""

    sight: Sight
    day: int
    hour: int


Booking = Ticket | Hotel | Visit
Plan = tuple[Booking, ...]


@dataclass(frozen=True, slots=True)
class Leg:
    """The way from one town to another on a day."""

    start: int
    end: int
    day: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A town where the traveler stays from the day `first` to the day `last`."""

    town: int
    first: int
    last: int

    @property
    def nights(self) -> int:
        """The number of nights."""
        return self.last - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A trip and its wishes. A wish that the request does not have is None, False or 0.

    Attributes:
        legs: the legs of the trip, in order.
        until: the day on which the last stay ends; None if the trip leads back.
        budget: the most that the whole plan may cost.
        trains: whether flights are forbidden.
        stars: the fewest stars that each hotel must have.
        sight: a town, and the kind of sight that must be visited there.
        leave: the earliest hour at which the first leg may leave.
        arrive: the latest hour at which the last leg may arrive.
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
        """The stops of the trip, in order."""
        days = [leg.day for leg in self.legs[1:]] + ([] if self.until is None else [self.until])
        return tuple(Stop(leg.end, leg.day, last) for leg, last in zip(self.legs, days, strict=False))


def leg_of(ticket: Ticket) -> Leg:
    """The leg that a ticket serves."""
    return Leg(ticket.start, ticket.end, ticket.day)


def nights(request: Request, hotel: Hotel) -> int:
    """The number of nights for which a hotel is booked; 1 if no stop begins there on its day."""
    return next((stop.nights for stop in request.stops if (stop.town, stop.first) == (hotel.town, hotel.day)), 1)


def price_of(request: Request, booking: Booking) -> int:
    """The price of a booking; of a hotel, for all nights."""
    if isinstance(booking, Ticket):
        return booking.price
    return booking.sight.price if isinstance(booking, Visit) else booking.price * nights(request, booking)


def cost(request: Request, plan: Iterable[Booking]) -> int:
    """The cost of a plan."""
    return sum(price_of(request, booking) for booking in plan)
