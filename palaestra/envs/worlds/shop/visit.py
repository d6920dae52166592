"""A visit to the shop: where the buyer is, what each command does, and the shortest way to the right purchase.

Knows pages as states, and commands as what is meant. Knows nothing of how pages and commands are written.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from palaestra.data import derive
from palaestra.envs.worlds.shop.catalogue import Catalogue, Choice, Goal

Page = Literal["search", "results", "item", "cart"]
Kind = Literal["search", "open", "choose", "turn", "back", "buy", "nothing"]


@dataclass(frozen=True, slots=True)
class Command:
    """What is meant: words to search for, a product to open, an option's value to choose, a page to turn by 1 or −1.

    "nothing" is what can be read and is not possible here.
    """

    kind: Kind
    words: tuple[str, ...] = ()
    number: int = 0
    choice: Choice = ("", "")


BACK, BUY, NOTHING = Command("back"), Command("buy"), Command("nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What stays the same during a visit.

    Attributes:
        right: products that fulfill the goal with the right options. query: the search that shows one on the earliest
            page, which is `depth`, counted from 0.
        name: of the catalogue and its goal. seed: decides what fails.
        missing, slip: probabilities that a search leaves out a product and that the choice of an option fails.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a visit is. Frozen: a snapshot is the state itself.

    Attributes:
        found: products of the last search, best first; the list shows its page `place`, counted from 0.
        item: the product that is looked at or in the cart. chosen: of its options. seen: products looked at so far.
        bought: whether the visit ended. failed: whether the last command changed nothing.
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
    """The products on the page of the list where the buyer is."""
    return state.found[state.place * store.page_size : (state.place + 1) * store.page_size]


def pages(store: Store, state: State) -> int:
    """How many pages the list has, one at least."""
    return max(1, -(-len(state.found) // store.page_size))


# ---- what commands do -------------------------------------------------------------------------------------
def act(store: Store, state: State, command: Command) -> State:
    """The state after a command; what is not possible changes nothing but the turn."""
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
    """Searches that make sense: the type with one attribute that is asked for, with all of them, alone."""
    some = ((attribute, goal.type) for attribute in goal.attributes)
    return list(dict.fromkeys([*some, (*goal.attributes, goal.type), (goal.type,)]))


def enter(catalogue: Catalogue, goal: Goal, **options: Any) -> Store:
    """The store for one visit; it knows from the start which products are right and which search shows one early."""
    right = frozenset(number for number, product in enumerate(catalogue.products) if goal.possible(product))
    size = options["page_size"]
    pages_of = {query: _earliest(catalogue.search(query), right, size) for query in queries(goal)}
    best = min(pages_of, key=lambda query: pages_of[query])  # of equals the one that comes first
    return Store(catalogue=catalogue, goal=goal, right=right, query=best, depth=int(pages_of[best]), **options)


def way(store: Store, state: State) -> list[Command]:
    """Commands of a shortest way from here to a purchase that is worth 1, if searches leave out nothing."""
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
    """The nearest page with a right product; another search, if that is nearer."""
    ways = [[BACK, *_after_search(store)]]
    for position, number in enumerate(state.found):
        if number in store.right:
            steps = position // store.page_size - state.place
            turns = [Command("turn", number=1 if steps > 0 else -1)] * abs(steps)
            ways.append([*turns, *_purchase(store, number)])
    return min(reversed(ways), key=len)  # of equals one without another search


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
    """The page of the first right product; infinity, if there is none."""
    return next((float(place // page_size) for place, number in enumerate(found) if number in right), math.inf)
