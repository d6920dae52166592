"""Options of the desk that do not fit together, refused before anything starts. Knows names and numbers only."""

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
    """Refuse what no desk can be.

    Args:
        world: the options that make tasks. user: who talks. model: a chat model was named. failure: of calls.

    Raises: RecipeError, UnknownName.
    """
    chat = user == "chat"
    possible = kinds_of(world["tables"])
    for name in world["kinds"]:
        if name not in possible:
            known = name in KINDS
            raise UnknownName(
                where=f"{WHERE}, kinds",
                what=f"`{name}` needs more than {world['tables']} tables." if known else f"no request is `{name}`.",
                options=possible if known else nearest(name, possible),
                remedy="Raise `tables`, or leave `kinds` out for all that the tables allow.",
            )
    least, most = world["requests"]
    needed, variety = world["customers"] * world["orders"], world["variety"]
    plans = all(KINDS[name].about == "customer" for name in world["kinds"])
    refuse = Refusals(WHERE)
    refuse.when_reversed(requests=(least, most))
    refuse.when(
        most > world["orders"],
        f"{most} wishes need as many orders of a customer, and `orders` is {world['orders']}.",
        f"Set `orders: {most}`.",
    )
    refuse.when(
        plans and most > 1, "a customer has one plan, and all `kinds` are about plans.", "Set `requests: [1, 1]`."
    )
    refuse.when(
        needed > variety,
        f"{world['customers']} customers with {world['orders']} orders each need more names than {variety}.",
        f"Lower `customers` or `orders`, or raise `variety` up to {len(ORDERS)}.",
    )
    if world["attack"] != "none":
        refuse.when(
            world["customers"] < 2,
            "an attack is about somebody else, and there is only one customer.",
            "Set `customers: 2` or more.",
        )
        refuse.when_empty(BEHAVIORS, behaviors=world["behaviors"])
    refuse.when(
        world["attack"] == "role" and user in ("static", "chat"),
        f"`attack: role` words what the user says, and `user: {user}` has words of its own.",
        "Set `user: open` or `user: withholding`, or `attack: pool`.",
    )
    refuse.when_certain("no call would ever work", failure=failure)
    refuse.when(chat and not model, "`user: chat` needs a model.", "Name it: `chat: {model: …}`.")
    refuse.when(model and not chat, "`chat` names a model that nobody asks.", "Set `user: chat`, or leave `chat` out.")
