"""Records: the tables of the shop, the values that their fields may have, and how a database is drawn.

A database consists of plain dicts: table → key → field → value.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

Value = str | int
Record = dict[str, Value]
Database = dict[str, dict[str, Record]]

TABLES = ("users", "orders", "payments", "items", "plans", "deliveries")  # `tables: k` uses the first k
CASES = "cases"  # table of refused and transferred requests, in every database
NAMES = ("ana", "ben", "cara", "dan", "eva", "finn", "gina", "hugo", "ida", "jon", "kira", "leo")
CODES = ("red", "blue", "green", "white", "black", "pink", "gray", "violet", "brown", "orange", "teal", "lime")
ORDERS = (
    *("fox", "owl", "cat", "dog", "hen", "pig", "cow", "bee", "ant", "bat", "elk", "eel"),
    *("frog", "goat", "hare", "lamb", "lion", "lynx", "mole", "moth", "mule", "newt", "puma", "seal"),
    *("swan", "toad", "wolf", "wren", "crab", "crow", "deer", "dove", "duck", "hawk", "ibis", "kiwi"),
)
ITEMS = ("lamp", "chair", "desk", "sofa", "clock", "phone", "kettle", "bike")
AMOUNTS = (10, 20, 30, 40, 60, 70, 80, 90)
FIELDS: Mapping[str, Mapping[str, tuple[Value, ...]]] = {  # table → field → values at the start
    "users": {"tier": ("gold", "plain"), "country": ("home", "abroad")},
    "orders": {
        "status": ("pending", "shipped"),
        "age": ("new", "old"),
        "address": ("oak", "elm", "ash", "fir"),
        "wrap": ("no",),
    },
    "payments": {"method": ("card", "cash", "bank"), "amount": AMOUNTS, "refunded": ("no",)},
    "items": {"stock": ("full", "empty"), "price": ("regular", "reduced")},
    "plans": {"plan": ("basic", "plus", "pro"), "contract": ("free", "bound"), "paused": ("no",)},
    "deliveries": {"day": ("monday", "tuesday", "friday"), "carrier": ("post", "courier", "van")},
}
LATER: Mapping[str, Mapping[str, tuple[Value, ...]]] = {  # values that only a change can set
    "orders": {"status": ("cancelled",), "wrap": ("yes",)},
    "payments": {"refunded": ("yes",)},
    "plans": {"paused": ("yes",)},
}


def allowed(table: str, field: str) -> tuple[Value, ...]:
    """The values that a field may have."""
    return (*FIELDS[table][field], *LATER.get(table, {}).get(field, ()))


def draw_database(tables: int, customers: int, orders: int, rng: random.Random, variety: int = len(ORDERS)) -> Database:
    """Draw a database of the first `tables` tables.

    Args:
        customers: number of customers.
        orders: number of orders of each customer.
        variety: number of names, of codes and of names of orders to draw from, as far as the lists go.
    """
    names = rng.sample(NAMES[:variety], customers)
    codes = rng.sample(CODES[:variety], customers)
    keys = rng.sample(ORDERS[:variety], customers * orders)
    found: Database = {table: {} for table in (*TABLES[:tables], CASES)}
    for item in ITEMS if "items" in found else ():
        found["items"][item] = _draw("items", rng)
    for place, name in enumerate(names):
        found["users"][name] = {"code": codes[place], **_draw("users", rng)}
        if "plans" in found:
            found["plans"][name] = _draw("plans", rng)
        for key in keys[place * orders : (place + 1) * orders]:
            found["orders"][key] = {"user": name, **_draw("orders", rng)}
            if "items" in found:
                found["orders"][key]["item"] = rng.choice(ITEMS)
            for table in ("payments", "deliveries"):
                if table in found:
                    found[table][key] = _draw(table, rng)
    return found


def _draw(table: str, rng: random.Random) -> Record:
    return {field: rng.choice(values) for field, values in FIELDS[table].items()}


def copied(database: Mapping[str, Mapping[str, Mapping[str, Value]]]) -> Database:
    """A copy of a database. Changes of one do not show in the other."""
    return {table: {key: dict(record) for key, record in records.items()} for table, records in database.items()}


def owner(database: Database, key: str) -> str | None:
    """The customer of an order, or the customer itself; None for an unknown key."""
    if key in database["users"]:
        return key
    order = database["orders"].get(key)
    return None if order is None else str(order["user"])


def place_of(database: Database, table: str, key: str) -> str | None:
    """The key in `table` of the record that belongs to the order or customer `key`; None if there is none."""
    order = database["orders"].get(key)
    if table == "users":
        return owner(database, key)
    if table == "items":
        return None if order is None or "item" not in order else str(order["item"])
    return key if key in database.get(table, {}) else None


def described(database: Database, table: str, key: str) -> str:
    """A record in words: `fox: status pending, age new, address oak, wrap no, item lamp.`

    A customer's code is left out.
    """
    record = database[table][key]
    shown = {name: value for name, value in record.items() if name not in ("code", "user")}
    if table == "users":
        orders = [order for order, entry in database["orders"].items() if entry["user"] == key]
        shown["orders"] = " ".join(orders) or "none"
    return f"{key}: {', '.join(f'{name} {value}' for name, value in shown.items())}."
