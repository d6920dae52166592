"""What must hold of plans in the world `travel`:

1. Each check of the verifier, by hand: a plan that fails it and passes all others. The cost of a plan, by hand.
2. The way between two places takes the same time in both directions.
3. The planner's plan is the cheapest of all that pass every check.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from palaestra.envs.worlds.travel.country import Country, Hotel, Sight, Ticket, hotels, minutes, tickets
from palaestra.envs.worlds.travel.planner import completed
from palaestra.envs.worlds.travel.trip import Leg, Request, Visit, cost
from palaestra.envs.worlds.travel.verifier import CHECKS, checks

LAND = Country(seed=1, towns=6, tickets=4, hotels=3, sights=3)
SIGHT = Sight(1, 1, "museum", 9, 17, 2, 5)
# From town 0 to town 1 on day 1, a night there, back on day 2.
REQUEST = Request(
    legs=(Leg(0, 1, 1), Leg(1, 0, 2)),
    budget=100,
    trains=True,
    stars=2,
    sight=(1, "museum"),
    leave=8,
    arrive=20,
)
OUT = Ticket("train", 0, 1, 1, 1, 8, 10, 20)
HOME = Ticket("train", 1, 0, 2, 1, 15, 17, 30)
BED = Hotel(1, 1, 1, 3, 45)
SEEN = Visit(SIGHT, 2, 10)
PLAN = (OUT, BED, SEEN, HOME)


def failed(plan, request=REQUEST):
    return [name for name, holds in checks(LAND, request, tuple(plan)).items() if not holds]


# ---- the first verifier -----------------------------------------------------------------------------------
def test_1_a_plan_that_keeps_all():
    assert failed(PLAN) == [] and cost(REQUEST, PLAN) == 20 + 45 + 5 + 30
    assert failed(reversed(PLAN)) == []  # the order of bookings makes no difference
    assert cost(replace(REQUEST, legs=(Leg(0, 1, 1), Leg(1, 0, 4))), [BED]) == 3 * 45  # three nights


@pytest.mark.parametrize(
    ("check", "plan"),
    [
        ("covered", (OUT, SEEN, HOME)),  # no bed
        ("covered", (*PLAN, replace(BED, day=2, price=0))),  # a bed for a night at home
        ("overlap", (OUT, BED, replace(SEEN, day=1, hour=9), HOME)),  # at the museum during the train ride
        ("overlap", (OUT, BED, replace(SEEN, hour=14), HOME)),  # the train leaves during the visit
        ("transfers", (OUT, BED, replace(SEEN, day=1, hour=10), HOME)),  # from the platform into the museum at once
        ("transfers", (OUT, BED, replace(SEEN, day=3), HOME)),  # the traveler is at home by then
        ("opening", (OUT, BED, replace(SEEN, day=1, hour=16), HOME)),  # until 18, and it closes at 17
        ("budget", (OUT, replace(BED, price=46), SEEN, HOME)),
        ("wishes", (OUT, replace(BED, stars=1), SEEN, HOME)),
        ("wishes", (OUT, BED, HOME)),  # the museum was not seen
        ("wishes", (replace(OUT, leaves=7), BED, SEEN, HOME)),
        ("wishes", (OUT, BED, SEEN, replace(HOME, arrives=21))),
        ("wishes", (replace(OUT, mode="flight"), BED, SEEN, HOME)),
    ],
)
def test_1_a_plan_that_fails_one_check(check, plan):
    assert minutes(LAND, 1, "station", "museum") > 0
    assert failed(plan) == [check]


def test_1_legs():
    assert "covered" in failed((BED, SEEN, HOME)) and "covered" in failed((OUT, *PLAN))
    assert "covered" in failed((replace(OUT, day=2), BED, SEEN, HOME))
    assert set(checks(LAND, REQUEST, PLAN)) == set(CHECKS)


def test_2_ways():
    names = ["station", "airport", "hotel1", "museum"]
    for a, b in itertools.product(names, names):
        assert minutes(LAND, 0, a, b) == minutes(LAND, 0, b, a) <= 125 and (minutes(LAND, 0, a, b) == 0) == (a == b)


def test_3_the_cheapest_plan():
    for seed in range(6):
        land = replace(LAND, seed=seed)
        request = Request(legs=(Leg(0, 1, 1), Leg(1, 2, 2)), until=3, stars=2, leave=7)
        rides = [
            [one for mode in ("train", "flight") for one in tickets(land, mode, leg.start, leg.end, leg.day)]
            for leg in request.legs
        ]
        beds = [hotels(land, stop.town, stop.first) for stop in request.stops]
        every = [plan for plan in itertools.product(*rides, *beds) if all(checks(land, request, plan).values())]
        found = completed(land, request)
        if not every:
            assert found is None
            continue
        assert cost(request, found) == min(cost(request, plan) for plan in every)
        assert completed(land, replace(request, budget=cost(request, found) - 1)) is None
        fixed = completed(land, request, (every[0][0],))
        assert every[0][0] in fixed and all(checks(land, request, fixed).values())
