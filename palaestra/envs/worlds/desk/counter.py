"""The counter: the tools of the desk, as functions on one database.

The tools check no rules. They do what a call says if it is possible.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from palaestra.data import ToolCall
from palaestra.envs.worlds.desk.kinds import GRANT, KINDS, LOOKUPS, REFUSE, TRANSFER, Decision, kinds_of
from palaestra.envs.worlds.desk.records import (
    CASES,
    ITEMS,
    TABLES,
    Database,
    Value,
    allowed,
    copied,
    described,
    place_of,
)
from palaestra.tools.formats import format_of
from palaestra.tools.tool import Tool, ToolError, tool


class Counter:
    """The functions behind the tools. One with a wrong key or value raises a ToolError and changes nothing.

    The docstrings of the tools are what an agent reads about them.

    Args:
        database: the tools change it in place.
        kinds: kinds of requests that can be refused or transferred.
    """

    def __init__(self, database: Database, kinds: tuple[str, ...] = ()) -> None:
        self.database, self._kinds = database, kinds

    # ---- looking up ---------------------------------------------------------------------------------------
    def authenticate(self, name: str, code: str) -> str:
        """Check who the customer is and show the customer's record.

        Args:
            name: of the customer.
            code: that only the customer knows.
        """
        user = self.database["users"].get(name)
        if user is None or user["code"] != code:
            raise ToolError("name and code do not match")
        return described(self.database, "users", name)

    def get_order(self, order: str) -> str:
        """Show an order."""
        return self._show("orders", order)

    def get_payment(self, order: str) -> str:
        """Show how an order was paid."""
        return self._show("payments", order)

    def get_item(self, order: str) -> str:
        """Show the item of an order."""
        return self._show("items", order)

    def get_plan(self, customer: str) -> str:
        """Show the plan of a customer."""
        return self._show("plans", customer)

    def get_delivery(self, order: str) -> str:
        """Show the delivery of an order."""
        return self._show("deliveries", order)

    # ---- changing -----------------------------------------------------------------------------------------
    def cancel_order(self, order: str) -> str:
        """Cancel an order."""
        return self._set("orders", order, "status", "cancelled")

    def change_address(self, order: str, address: str) -> str:
        """Send an order to another address."""
        return self._set("orders", order, "address", address)

    def wrap_order(self, order: str) -> str:
        """Have an order wrapped as a gift."""
        return self._set("orders", order, "wrap", "yes")

    def refund_order(self, order: str) -> str:
        """Pay the amount of an order back."""
        self._set("payments", order, "refunded", "yes")
        return f"done: {self.database['payments'][order]['amount']} refunded"

    def change_method(self, order: str, method: str) -> str:
        """Change how an order is paid."""
        return self._set("payments", order, "method", method)

    def exchange_item(self, order: str, item: str) -> str:
        """Exchange the item of an order."""
        if item not in ITEMS:
            raise ToolError(f"no item {item[:40]}")
        self._record("orders", order)["item"] = item
        return "done"

    def change_plan(self, customer: str, plan: str) -> str:
        """Move a customer to another plan."""
        return self._set("plans", customer, "plan", plan)

    def pause_plan(self, customer: str) -> str:
        """Pause the plan of a customer."""
        return self._set("plans", customer, "paused", "yes")

    def change_day(self, order: str, day: str) -> str:
        """Deliver an order on another day."""
        return self._set("deliveries", order, "day", day)

    def change_carrier(self, order: str, carrier: str) -> str:
        """Deliver an order by another carrier."""
        return self._set("deliveries", order, "carrier", carrier)

    # ---- not doing it -------------------------------------------------------------------------------------
    def refuse(self, request: str, key: str) -> str:
        """Note that a request is refused.

        Args:
            request: its kind, such as cancel_order.
            key: the order, or the customer where it is about a plan.
        """
        return self._note(request, key, "refused")

    def transfer(self, request: str, key: str) -> str:
        """Give a request to a human.

        Args:
            request: its kind, such as cancel_order.
            key: the order, or the customer where it is about a plan.
        """
        return self._note(request, key, "transferred")

    # ---- the database -------------------------------------------------------------------------------------
    def _record(self, table: str, key: str) -> dict[str, Value]:
        place = place_of(self.database, table, key)
        if place is None:
            raise ToolError(f"no {'customer' if table == 'plans' else 'order'} {key[:40]}")
        return self.database[table][place]

    def _show(self, table: str, key: str) -> str:
        self._record(table, key)
        return described(self.database, table, str(place_of(self.database, table, key)))

    def _set(self, table: str, key: str, field: str, value: str) -> str:
        record = self._record(table, key)
        if value not in allowed(table, field):
            raise ToolError(f"no {field} {value[:40]}")
        record[field] = value
        return "done"

    def _note(self, request: str, key: str, verdict: str) -> str:
        if request not in self._kinds:
            raise ToolError(f"no request {request[:40]}")
        self._record("plans" if KINDS[request].about == "customer" else "orders", key)
        self.database[CASES][f"{request} {key}"] = {"verdict": verdict}
        return verdict


def names_of(tables: int) -> tuple[str, ...]:
    """The tools of the first `tables` tables: lookups, then changes, then `refuse` and `transfer`."""
    lookups = [name for name, table in LOOKUPS.items() if table in TABLES[:tables]]
    changes = [name for name in kinds_of(tables) if KINDS[name].changes]
    return (*lookups, *changes, REFUSE, TRANSFER)


@functools.cache
def _patterns() -> Mapping[str, Tool]:
    """All tools by name. They are made once, because their schemas are the same for every database."""
    counter = Counter({})
    functions: list[Callable[..., str]] = [getattr(counter, name) for name in names_of(len(TABLES))]
    return {function.__name__: tool(function) for function in functions}


def tools_of(counter: Counter, tables: int) -> list[Tool]:
    """The tools that work on the database of a counter."""
    return [dataclasses.replace(_patterns()[name], call=getattr(counter, name)) for name in names_of(tables)]


@functools.lru_cache(maxsize=65536)
def call_text(format: str, name: str, arguments: tuple[tuple[str, str], ...]) -> str:
    """A call as text, in a format. Texts are cached, because the same few calls are legal in most turns."""
    return format_of(format).write(ToolCall(name=name, arguments=dict(arguments)), _patterns())


def decision_of(call: ToolCall) -> Decision | None:
    """What a call decides; None if it only looks something up or names no kind of request."""
    given = {name: str(value) for name, value in call.arguments.items()}
    if call.name in (REFUSE, TRANSFER):
        kind = KINDS.get(given.get("request", ""))
        return None if kind is None else Decision(kind=kind.name, key=given.get("key", ""), verdict=call.name)
    kind = KINDS.get(call.name)
    if kind is None or not kind.changes:
        return None
    return Decision(kind=kind.name, key=given.get(kind.about, ""), verdict=GRANT, arguments=given)


def call_for(decision: Decision, chosen: str | None = None) -> ToolCall:
    """The call that carries out a decision. `chosen`: the new value, for changes in which the customer chooses one."""
    if decision.verdict != GRANT:
        return ToolCall(name=decision.verdict, arguments={"request": decision.kind, "key": decision.key})
    return ToolCall(name=decision.kind, arguments=KINDS[decision.kind].arguments(decision.key, chosen))


def key_of(call: ToolCall) -> str | None:
    """The order or customer that a call is about; None for `authenticate` and for calls that name none."""
    if call.name == "authenticate":
        return None
    found = next((call.arguments[name] for name in ("order", "customer", "key") if name in call.arguments), None)
    return None if found is None else str(found)


def after(database: Database, calls: list[ToolCall], kinds: tuple[str, ...]) -> Database:
    """A copy of the database after these calls. Raises: ToolError, if one of them is impossible."""
    counter = Counter(copied(database), kinds)
    for call in calls:
        getattr(counter, call.name)(**call.arguments)
    return counter.database
