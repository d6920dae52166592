"""The catalogue of the shop: products in families of near twins, what is asked for, how a purchase is graded, search.

Knows products and goals. Knows nothing of pages, turns or agents.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from palaestra.data import derive
from palaestra.envs.worlds.shop.words import DEPARTMENTS, Department

ATTRIBUTES = 3  # of a product; the first two are in its title
MOST_FOUND = 50  # products that a search shows at most
SAME_TYPE, SAME_DEPARTMENT, ELSEWHERE = 1.0, 0.5, 0.0
TYPE_WEIGHT, TITLE_WEIGHT, DETAIL_WEIGHT = 4, 2, 1  # of a word that a search asks for
Choice = tuple[str, str]  # an option and its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What is for sale. `options` tells for each option which values there are."""

    department: str
    type: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int

    @property
    def title(self) -> tuple[str, ...]:
        """The words that lists show."""
        return (*self.attributes[: ATTRIBUTES - 1], self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked for: a type and constraints. `most` is the price bound, None if there is none."""

    department: str
    type: str
    attributes: tuple[str, ...]
    options: tuple[Choice, ...]
    most: int | None

    @property
    def constraints(self) -> int:
        """How many there are."""
        return len(self.attributes) + len(self.options) + (self.most is not None)

    def possible(self, product: Product) -> bool:
        """Whether this product, with the right options chosen, is all that is asked for."""
        offered = tuple((name, value) for name, value in self.options if value in product.options.get(name, ()))
        return product.type == self.type and score(self, product, offered) == 1.0


def score(goal: Goal, product: Product, chosen: Sequence[Choice]) -> float:
    """What a purchase is worth: f · (attributes met + options met + bound kept) / constraints.

    f is 1 for the type that is asked for, 0.5 for another type of its department, 0 elsewhere. An option is met if its
    value was chosen; the bound is kept by a price that is not above it.
    """
    if product.type == goal.type:
        factor = SAME_TYPE
    else:
        factor = SAME_DEPARTMENT if product.department == goal.department else ELSEWHERE
    met = len(set(goal.attributes) & set(product.attributes)) + len(set(goal.options) & set(chosen))
    met += goal.most is not None and product.price <= goal.most
    return factor * met / goal.constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Products by number, one goal for each family, and for each word the products that it says something of."""

    products: tuple[Product, ...]
    goals: tuple[Goal, ...]
    index: Mapping[str, tuple[tuple[int, int], ...]]  # word → (number, weight) of products

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the products that these words say most of, best first, then by number; no word, no product."""
        weights: Counter[int] = Counter()
        for word in dict.fromkeys(words):
            for number, weight in self.index.get(word, ()):
                weights[number] += weight
        return tuple(sorted(weights, key=lambda number: (-weights[number], number))[:MOST_FOUND])


# ---- making one -------------------------------------------------------------------------------------------
def families(products: int, distractors: int) -> int:
    """How many goals a catalogue has."""
    return products // (1 + distractors)


def constraints_of(number: int, family: int, constraints: tuple[int, int]) -> int:
    """How many constraints a family's goal has; `build` makes it so."""
    fewest, most = constraints
    return fewest + derive(number, "constraints", family) % (most - fewest + 1)


@lru_cache(maxsize=64)
def build(departments: int, products: int, constraints: tuple[int, int], distractors: int, number: int) -> Catalogue:
    """The catalogue of this number. A family is a product, its goal, and `distractors` that miss one constraint."""
    draw = random.Random(derive(number, "catalogue"))
    made: list[Product] = []
    goals = []
    for family in range(families(products, distractors)):
        product = _product(departments, draw)
        goal, kinds = _goal(product, constraints_of(number, family, constraints), draw)
        goals.append(goal)
        made.append(product)
        made += [_twin(product, goal, kinds[k % len(kinds)], draw) for k in range(distractors)]
    made += [_product(departments, draw) for _ in range(products - len(made))]
    draw.shuffle(made)
    return Catalogue(products=tuple(made), goals=tuple(goals), index=_index(made))


def _product(departments: int, draw: random.Random) -> Product:
    name = draw.choice(list(DEPARTMENTS)[:departments])
    shelf = DEPARTMENTS[name]
    options = {}
    for option, values in shelf.options.items():
        offered = draw.sample(values, draw.randint(2, len(values)))
        options[option] = tuple(value for value in values if value in offered)
    return Product(
        department=name,
        type=draw.choice(shelf.types),
        attributes=tuple(draw.sample(shelf.attributes, ATTRIBUTES)),
        options=options,
        price=draw.randint(5, 95),
    )


def _goal(product: Product, count: int, draw: random.Random) -> tuple[Goal, list[str]]:
    """A goal of `count` constraints that the product fulfills, one attribute at least; and what its constraints are."""
    first, *others = draw.sample(product.attributes, ATTRIBUTES)
    kinds = [first, *draw.sample([*others, *product.options, "price"], count - 1)]
    bound = -(-product.price // 10) * 10
    shelf = DEPARTMENTS[product.department]
    goal = Goal(
        department=product.department,
        type=product.type,
        attributes=tuple(one for one in shelf.attributes if one in kinds),
        options=tuple((name, draw.choice(product.options[name])) for name in shelf.options if name in kinds),
        most=bound if "price" in kinds else None,
    )
    draw.shuffle(kinds)
    return goal, kinds


def _twin(product: Product, goal: Goal, missing: str, draw: random.Random) -> Product:
    """A product like this one that misses one constraint of the goal."""
    shelf = DEPARTMENTS[product.department]
    bound = -(-product.price // 10) * 10
    price = bound + draw.randint(1, 20) if missing == "price" else draw.randint(bound - 9, bound)
    twin = replace(product, price=price, attributes=_shuffled(product.attributes, goal, shelf, missing, draw))
    if missing in product.options:
        wanted = dict(goal.options)[missing]
        left = tuple(value for value in product.options[missing] if value != wanted)
        twin = replace(twin, options={**product.options, missing: left})
    return twin


def _shuffled(
    attributes: tuple[str, ...], goal: Goal, shelf: Department, missing: str, draw: random.Random
) -> tuple[str, ...]:
    """The attributes of a twin: `missing` exchanged, what nobody asked for perhaps too, in another order."""
    others = [one for one in shelf.attributes if one not in attributes]
    draw.shuffle(others)
    kept = [one for one in attributes if one != missing and (one in goal.attributes or draw.random() < 0.5)]
    kept += others[: len(attributes) - len(kept)]
    draw.shuffle(kept)
    return tuple(kept)


def _index(products: Sequence[Product]) -> dict[str, tuple[tuple[int, int], ...]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for number, product in enumerate(products):
        found.setdefault(product.type, []).append((number, TYPE_WEIGHT))
        for place, word in enumerate(product.attributes):
            weight = TITLE_WEIGHT if place < ATTRIBUTES - 1 else DETAIL_WEIGHT
            found.setdefault(word, []).append((number, weight))
    return {word: tuple(entries) for word, entries in found.items()}
