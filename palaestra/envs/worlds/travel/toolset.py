"""The tools of the world: their names, their arguments, and the descriptions that agents read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palaestra.envs.kit.words import Vocabulary
from palaestra.envs.worlds.travel.country import MODES
from palaestra.envs.worlds.travel.words import town_names
from palaestra.tools.tool import Tool

LINES = ("trains", "flights", "hotels", "pois", "route", "book", "visit", "undo", "done")
WHOLE = ("trains", "flights", "hotels", "pois", "route", "plan")
NUMBER = {"type": "integer"}


def tools_of(
    names: tuple[str, ...], words: Vocabulary, towns: int, *, priced: bool, call: Callable[..., Any]
) -> list[Tool]:
    """The tools of these names. Each one runs `call(name, **arguments)`.

    Args:
        towns: number of towns that arguments may name.
        priced: whether bookings state a price.
    """
    return [_tool(name, words, towns, priced, call) for name in names]


def _tool(name: str, words: Vocabulary, towns: int, priced: bool, call: Callable[..., Any]) -> Tool:
    town = {"type": "string", "enum": list(town_names(words)[:towns])}
    word = {"type": "string"}
    price = {"price": NUMBER} if priced else {}
    kinds = {"type": "string", "enum": [words.say(kind) for kind in (*MODES, "hotel")]}
    given: dict[str, dict[str, Any]] = {
        "trains": {"start": town, "end": town, "day": NUMBER},
        "flights": {"start": town, "end": town, "day": NUMBER},
        "hotels": {"town": town, "day": NUMBER},
        "pois": {"town": town},
        "route": {"town": town, "start": word, "end": word},
        "book": {"kind": kinds, "number": NUMBER, **price},
        "visit": {"number": NUMBER, "day": NUMBER, "hour": NUMBER, **price},
        "plan": {"items": {"type": "array", "items": _item(priced)}},
    }
    s = words.say
    told = {
        "trains": f"{s('trains')} on a day: leave and arrive at full hours",
        "flights": f"{s('flights')} on a day",
        "hotels": f"{s('hotels')} for who arrives on the day, with the price of a night",
        "pois": "what there is to see",
        "route": f"minutes between two places of a town: {s('station')}, {s('airport')}, {s('hotel1')} …, or a sight",
        "book": "put one of the last list of this kind into the plan",
        "visit": "put a sight of the last list into the plan, for a day and an hour",
        "undo": "take back what was put into the plan last",
        "done": "hand the plan in",
        "plan": "hand the whole plan in: what is booked and seen",
    }
    arguments = given.get(name, {})
    return Tool(
        name=s(name),
        description=told[name],
        parameters={"type": "object", "properties": arguments, "required": list(arguments)},
        call=lambda **arguments: call(name, **arguments),
    )


def _item(priced: bool) -> dict[str, Any]:
    properties = {"id": {"type": "string"}, "price": NUMBER, "day": NUMBER, "hour": NUMBER}
    required = ["id", "price"] if priced else ["id"]
    return {"type": "object", "properties": properties, "required": required}
