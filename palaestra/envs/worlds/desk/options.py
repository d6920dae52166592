"""Checks of the desk's options: options that do not fit together are refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.worlds.desk.attacks import BEHAVIORS
from palaestra.envs.worlds.desk.kinds import KINDS, kinds_of
from palaestra.envs.worlds.desk.records import ORDERS
from palaestra.errors import UnknownName, nearest

WHERE = "environment: desk"


def check(world: Mapping[str, Any], *, user: str, model: bool, failure: float) -> None:
    """Refuse options that do not fit together.

    Args:
        world: the options that decide the tasks, by name.
        user, failure: the options of these names.
        model: whether a chat model was named.

    Raises: RecipeError; UnknownName, for a kind of request that is unknown or needs more tables.
    """
    chat = user == "chat"
    possible = kinds_of(world["tables"])
    for name in world["kinds"]:
        if name not in possible:
            known = name in KINDS
            raise UnknownName(
                where=f"{WHERE}, kinds",
                what=f"`{name}` needs more than {world['tables']} tables." if known else f"no kind is called `{name}`.",
                options=possible if known else nearest(name, possible),
                remedy="Raise `tables`, or leave `kinds` out to get all kinds that the tables allow.",
            )
    least, most = world["requests"]
    needed, variety = world["customers"] * world["orders"], world["variety"]
    plans = all(KINDS[name].about == "customer" for name in world["kinds"])
    refuse = Refusals(WHERE)
    refuse.when_reversed(requests=(least, most))
    refuse.when(
        most > world["orders"],
        f"{most} wishes (`requests`) need {most} orders of one customer, and `orders` is {world['orders']}.",
        f"Set `orders: {most}`.",
    )
    refuse.when(
        plans and most > 1,
        f"`requests` allows {most} wishes, and all `kinds` are about the customer's only plan.",
        "Set `requests: [1, 1]`.",
    )
    refuse.when(
        needed > variety,
        f"{world['customers']} customers with {world['orders']} orders each need {needed} names of orders, and "
        f"`variety` is {variety}.",
        f"Lower `customers` or `orders`, or raise `variety`, to {len(ORDERS)} at most.",
    )
    if world["attack"] != "none":
        refuse.when(
            world["customers"] < 2,
            "an attack is about another customer, and `customers` is 1.",
            "Set `customers: 2` or more.",
        )
        refuse.when_empty(BEHAVIORS, behaviors=world["behaviors"])
    refuse.when(
        world["attack"] == "role" and user in ("static", "chat"),
        f"with `attack: role` the attacker writes into the user's first turn, and `user: {user}` does not allow that.",
        "Set `user: open` or `user: withholding`, or `attack: pool`.",
    )
    refuse.when(
        chat and "request" in world,
        f"`request: {world.get('request')}` gives scripted customers their sentences, and `user: chat` has its own.",
        "Leave `request` out, or set `user: withholding`.",
    )
    refuse.when_certain("no call can succeed", failure=failure)
    refuse.when(chat and not model, "`user: chat` needs a chat model.", "Set `chat: {model: …}`.")
    refuse.when(
        model and not chat,
        f"`chat` names a model, and `user: {user}` does not use it.",
        "Set `user: chat`, or leave `chat` out.",
    )
