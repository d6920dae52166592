"""Kinds of requests: what customers ask for, with which tool it is done, and what has to be known for it.

Knows tools by name and tables by name. Knows no rule and no customer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from palaestra.envs.worlds.desk.records import TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request.

    Attributes:
        name: as agents call it; of changes, the tool's name.
        table: where it happens. about: what its record is, an order or the customer.
        field, value: what a change sets; without a value, the customer names one. Without a field it is a question.
        answer: the field whose value must be told.
        text: how customers put it.
    """

    name: str
    table: str
    text: tuple[str, ...]
    about: str = "order"
    field: str | None = None
    value: str | None = None
    answer: str | None = None

    @property
    def changes(self) -> bool:
        """Whether something is written."""
        return self.field is not None

    @property
    def slot(self) -> str | None:
        """The name of the value that the customer chooses."""
        return self.field if self.changes and self.value is None else None

    def arguments(self, key: str, chosen: str | None) -> dict[str, str]:
        """The arguments of the tool that makes this change."""
        return {self.about: key, **({} if self.slot is None else {self.slot: str(chosen)})}


def _texts(what: str) -> tuple[str, ...]:
    return (f"i want to {what}.", f"please {what}.", f"i would like to {what}.", f"can you {what}?")


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="order_status", table="orders", answer="status", text=_texts("know the status of an order")),
        Kind(name="cancel_order", table="orders", field="status", value="cancelled", text=_texts("cancel an order")),
        Kind(name="change_address", table="orders", field="address", text=_texts("change the address of an order")),
        Kind(name="wrap_order", table="orders", field="wrap", value="yes", text=_texts("have an order wrapped")),
        Kind(name="order_cost", table="payments", answer="amount", text=_texts("know the cost of an order")),
        Kind(
            name="refund_order",
            table="payments",
            field="refunded",
            value="yes",
            answer="amount",
            text=_texts("get a refund for an order"),
        ),
        Kind(name="change_method", table="payments", field="method", text=_texts("change how an order is paid")),
        Kind(name="exchange_item", table="items", field="item", text=_texts("exchange the item of an order")),
        Kind(name="change_plan", table="plans", about="customer", field="plan", text=_texts("change my plan")),
        Kind(
            name="pause_plan",
            table="plans",
            about="customer",
            field="paused",
            value="yes",
            text=_texts("pause my plan"),
        ),
        Kind(name="change_day", table="deliveries", field="day", text=_texts("change the delivery day of an order")),
        Kind(name="change_carrier", table="deliveries", field="carrier", text=_texts("change the carrier of an order")),
    )
}
LOOKUPS: Mapping[str, str] = {  # tool → the table that it shows; `authenticate` shows the customer
    "authenticate": "users",
    "get_order": "orders",
    "get_payment": "payments",
    "get_item": "items",
    "get_plan": "plans",
    "get_delivery": "deliveries",
}
HEARS: Mapping[str, tuple[str, ...]] = {  # fact → words that ask for it
    "name": ("name", "who"),
    "code": ("code", "password"),
    "request": ("request", "wish", "help", "want"),
    "order": ("order",),
    "address": ("address",),
    "method": ("method",),
    "item": ("item",),
    "plan": ("plan",),
    "day": ("day",),
    "carrier": ("carrier",),
}


def kinds_of(tables: int) -> tuple[str, ...]:
    """The kinds of requests that the first `tables` tables allow."""
    return tuple(name for name, kind in KINDS.items() if kind.table in TABLES[:tables])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a call decides: to do what was requested, to refuse it, or to give it to a human."""

    kind: str
    key: str
    verdict: str
    arguments: Mapping[str, str] = field(default_factory=dict)


GRANT, REFUSE, TRANSFER = "grant", "refuse", "transfer"
VERDICTS = (GRANT, REFUSE, TRANSFER)
TOLD: Mapping[str, tuple[str, ...]] = {  # words that tell a customer how it ended; the first is the shortest way
    GRANT: ("done", "completed", "processed"),
    REFUSE: ("refused", "rejected", "cannot be done"),
    TRANSFER: ("transferred", "passed on"),
}
