"""Kinds of requests: what customers ask for, which tool does it, and which facts it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from palaestra.envs.worlds.desk.records import TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request.

    Attributes:
        name: its name for agents. For a change it is also the name of the tool.
        table: the table that is read or changed.
        text: phrasings of customers.
        about: "order" or "customer", the record that it is about.
        field: the field that a change sets; None: the request is a question.
        value: the value that a change sets; None: the customer chooses it.
        answer: the field whose value the agent must tell.
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
        """Whether it is a change, and not a question."""
        return self.field is not None

    @property
    def slot(self) -> str | None:
        """The field whose value the customer chooses; None if there is none."""
        return self.field if self.changes and self.value is None else None

    def arguments(self, key: str, chosen: str | None) -> dict[str, str]:
        """The arguments of the tool that makes this change. `chosen`: the value that the customer chooses."""
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
    """What a call decides about a request: to grant it, to refuse it, or to transfer it to a human."""

    kind: str
    key: str
    verdict: str
    arguments: Mapping[str, str] = field(default_factory=dict)


GRANT, REFUSE, TRANSFER = "grant", "refuse", "transfer"
VERDICTS = (GRANT, REFUSE, TRANSFER)
TOLD: Mapping[str, tuple[str, ...]] = {  # verdict → words that tell a customer how it ended
    GRANT: ("done", "completed", "processed"),
    REFUSE: ("refused", "rejected", "cannot be done"),
    TRANSFER: ("transferred", "passed on"),
}
