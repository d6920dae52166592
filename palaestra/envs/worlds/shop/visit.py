"""A visit to the shop: its state, the effect of each command, and the shortest way to a right purchase."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from palaestra.data import derive
from palaestra.envs.worlds.shop.catalogue import Catalogue, Choice, Goal
from palaestra.envs.worlds.shop.words import DEPARTMENTS

Page = Literal["search", "results", "item", "cart"]
Kind = Literal["search", "open", "choose", "turn", "back", "buy", "nothing"]


@dataclass(frozen=True, slots=True)
class Command:
    """What the buyer does. The kind "nothing" stands for a text without a meaning on this page; it changes nothing.

    Attributes:
        words: what to search for.
        number: the product to open; of the kind "turn", 1 for the next page and −1 for the previous one.
        choice: the option and the value to choose.
    """

    kind: Kind
    words: tuple[str, ...] = ()
    number: int = 0
    choice: Choice = ("", "")


LISTED = 2  # most words of the searches that `all_queries` lists
BACK, BUY, NOTHING = Command("back"), Command("buy"), Command("nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What does not change during a visit.

    Attributes:
        right: numbers of the products that fulfill the goal with the right options.
        query: the search that lists one of them on the earliest page; depth: that page, from 0.
        name: identifies the catalogue and the goal.
        seed: decides which searches leave out products and which choices fail.
        missing, slip: probabilities that a search leaves out a product and that the choice of an option fails.
        request: what the buyer is asked for, if it is described. "": the goal's own words are shown.
    """

    catalogue: Catalogue
    goal: Goal
    right: frozenset[int]
    query: tuple[str, ...]
    depth: int
    name: str
    seed: int
    page_size: int
    cart: bool
    missing: float
    slip: float
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a visit.

    Attributes:
        found: products of the last search, best first.
        place: the page of this list that is shown, from 0.
        item: the product whose page is open, or that is in the cart; −1 if there is none.
        chosen: the options chosen for it.
        seen: products whose pages were opened so far.
        bought: whether the order was placed, which ends the visit.
        failed: whether the last command changed nothing.
    """

    page: Page = "search"
    found: tuple[int, ...] = ()
    place: int = 0
    item: int = -1
    chosen: tuple[Choice, ...] = ()
    seen: frozenset[int] = frozenset()
    bought: bool = False
    failed: bool = False
    turn: int = 0


def shown(store: Store, state: State) -> tuple[int, ...]:
    """The products on the present page of the list."""
    return state.found[state.place * store.page_size : (state.place + 1) * store.page_size]


def pages(store: Store, state: State) -> int:
    """The number of pages of the list, at least 1."""
    return max(1, -(-len(state.found) // store.page_size))


# ---- what commands do -------------------------------------------------------------------------------------
def act(store: Store, state: State, command: Command) -> State:
    """The state after a command. A command that is not possible changes only `turn` and `failed`."""
    after = _next(store, state, command)
    return replace(after or state, turn=state.turn + 1, failed=after is None)


def _next(store: Store, state: State, command: Command) -> State | None:
    match state.page, command.kind:
        case "search", "search":
            return replace(state, page="results", found=_find(store, state, command.words), place=0)
        case "results", "turn" if 0 <= state.place + command.number < pages(store, state):
            return replace(state, place=state.place + command.number)
        case "results", "open" if command.number in shown(store, state):
            seen = state.seen | {command.number}
            return replace(state, page="item", item=command.number, chosen=(), seen=seen)
        case "item", "choose" if command.choice[1] in _offered(store, state, command.choice[0]):
            return None if _fails(store, state, store.slip) else replace(state, chosen=_with(state, command.choice))
        case "item", "buy" if store.cart:
            return replace(state, page="cart")
        case "item" | "cart", "buy":
            return replace(state, bought=True)
        case "cart", "back":
            return replace(state, page="item")
        case "item", "back":
            return replace(state, page="results", item=-1, chosen=())
        case "results", "back":
            return replace(state, page="search", found=(), place=0)
    return None


def _find(store: Store, state: State, words: Sequence[str]) -> tuple[int, ...]:
    found = store.catalogue.search(words)
    if not store.missing:
        return found
    draw = random.Random(derive(store.seed, "missing", state.turn))
    return tuple(number for number in found if draw.random() >= store.missing)


def _fails(store: Store, state: State, probability: float) -> bool:
    return probability > 0 and derive(store.seed, "slip", state.turn) / 2**63 < probability


def _offered(store: Store, state: State, option: str) -> tuple[str, ...]:
    return store.catalogue.products[state.item].options.get(option, ())


def _with(state: State, choice: Choice) -> tuple[Choice, ...]:
    return tuple(sorted({**dict(state.chosen), choice[0]: choice[1]}.items()))


# ---- the shortest way -------------------------------------------------------------------------------------
def queries(goal: Goal) -> list[tuple[str, ...]]:
    """The searches that make sense: the goal's type with one of its attributes, with all of them, and alone."""
    some = ((attribute, goal.type) for attribute in goal.attributes)
    return list(dict.fromkeys([*some, (*goal.attributes, goal.type), (goal.type,)]))


def all_queries(catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Each type of the catalogue's departments, alone and with each attribute of its department."""
    names = {product.department for product in catalogue.products}
    shelves = [shelf for name, shelf in DEPARTMENTS.items() if name in names]
    return [
        query
        for shelf in shelves
        for kind in shelf.types
        for query in [(kind,), *((a, kind) for a in shelf.attributes)]
    ]


def right_of(catalogue: Catalogue, goal: Goal) -> frozenset[int]:
    """Numbers of the products that fulfill the goal when the right options are chosen."""
    return frozenset(number for number, product in enumerate(catalogue.products) if goal.possible(product))


def enter(catalogue: Catalogue, goal: Goal, **options: Any) -> Store:
    """The store for one visit, with the right products and the best search already found."""
    right, size = right_of(catalogue, goal), options["page_size"]
    useful = [query for query in queries(goal) if not options.get("request") or len(query) <= LISTED]
    pages_of = {query: _earliest(catalogue.search(query), right, size) for query in useful}
    best = min(pages_of, key=lambda query: pages_of[query])  # the first of those that are equally good
    return Store(catalogue=catalogue, goal=goal, right=right, query=best, depth=int(pages_of[best]), **options)


def way(store: Store, state: State) -> list[Command]:
    """The commands of a shortest way from here to a purchase with score 1, if no search leaves out a product."""
    if state.bought:
        return []
    if state.page == "search":
        return _after_search(store)
    if state.page == "results":
        return _from_list(store, state)
    if state.item not in store.right:
        back = [BACK, BACK] if state.page == "cart" else [BACK]
        listed = replace(state, page="results", item=-1, chosen=())
        return [*back, *_from_list(store, listed)]
    left = [Command("choose", choice=choice) for choice in store.goal.options if choice not in state.chosen]
    if state.page == "cart":
        return [BACK, *left, BUY, BUY] if left else [BUY]
    return [*left, *_pay(store)]


def _from_list(store: Store, state: State) -> list[Command]:
    """The way from a list: turn to the nearest right product, or search again if that is shorter."""
    ways = [[BACK, *_after_search(store)]]
    for position, number in enumerate(state.found):
        if number in store.right:
            steps = position // store.page_size - state.place
            turns = [Command("turn", number=1 if steps > 0 else -1)] * abs(steps)
            ways.append([*turns, *_purchase(store, number)])
    return min(reversed(ways), key=len)  # of equally short ways, one without another search


def _after_search(store: Store) -> list[Command]:
    found = store.catalogue.search(store.query)
    number = next(one for one in found[store.depth * store.page_size :] if one in store.right)
    return [Command("search", words=store.query), *[Command("turn", number=1)] * store.depth, *_purchase(store, number)]


def _purchase(store: Store, number: int) -> list[Command]:
    chosen = [Command("choose", choice=choice) for choice in store.goal.options]
    return [Command("open", number=number), *chosen, *_pay(store)]


def _pay(store: Store) -> list[Command]:
    return [BUY, BUY] if store.cart else [BUY]


def _earliest(found: Sequence[int], right: frozenset[int], page_size: int) -> float:
    """The page of the first right product, from 0; infinity if there is none."""
    return next((float(place // page_size) for place, number in enumerate(found) if number in right), math.inf)
