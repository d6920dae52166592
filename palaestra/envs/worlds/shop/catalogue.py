"""The catalogue of the shop: its products, the goals of instructions, the score of a purchase, and search.

A family of the catalogue is a product that fulfills a goal, and similar products (distractors) that do not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from palaestra.data import derive
from palaestra.envs.worlds.shop.words import DEPARTMENTS, Department

ATTRIBUTES = 3  # attributes of a product; the first two are in its title
MOST_FOUND = 50  # most products that a search finds
SAME_TYPE, SAME_DEPARTMENT, ELSEWHERE = 1.0, 0.5, 0.0
TYPE_WEIGHT, TITLE_WEIGHT, DETAIL_WEIGHT = 4, 2, 1  # of a searched word that is the type, in the title, in the details
Choice = tuple[str, str]  # an option and its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product that is for sale. `options`: each option with the values that this product has."""

    department: str
    type: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int

    @property
    def title(self) -> tuple[str, ...]:
        """The words that lists of products show."""
        return (*self.attributes[: ATTRIBUTES - 1], self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What an instruction asks for: a type and constraints. `most`: the highest price, None if every price is right."""

    department: str
    type: str
    attributes: tuple[str, ...]
    options: tuple[Choice, ...]
    most: int | None

    @property
    def constraints(self) -> int:
        """The number of constraints."""
        return len(self.attributes) + len(self.options) + (self.most is not None)

    def possible(self, product: Product) -> bool:
        """Whether this product fulfills the goal when the right options are chosen."""
        offered = tuple((name, value) for name, value in self.options if value in product.options.get(name, ()))
        return product.type == self.type and score(self, product, offered) == 1.0


def score(goal: Goal, product: Product, chosen: Sequence[Choice]) -> float:
    """The score of a purchase: f · (attributes met + options met + bound kept) / constraints.

    f is 1 for the goal's type, 0.5 for another type of its department, and else 0. An option is met if its value was
    chosen. The bound is kept if the price is not above it.
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
    """The products, one goal for each family, and an index from words to the products that have them."""

    products: tuple[Product, ...]
    goals: tuple[Goal, ...]
    index: Mapping[str, tuple[tuple[int, int], ...]]  # word → (number, weight) of each product that has it

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """Numbers of the products that have some of these words, by the sum of the words' weights, highest first.

        Products of equal weight are in the order of their numbers.
        """
        weights: Counter[int] = Counter()
        for word in dict.fromkeys(words):
            for number, weight in self.index.get(word, ()):
                weights[number] += weight
        return tuple(sorted(weights, key=lambda number: (-weights[number], number))[:MOST_FOUND])


# ---- making a catalogue -----------------------------------------------------------------------------------
def families(products: int, distractors: int) -> int:
    """The number of families in a catalogue, which is also its number of goals."""
    return products // (1 + distractors)


def constraints_of(number: int, family: int, constraints: tuple[int, int]) -> int:
    """The number of constraints of a family's goal. `difficulty` uses it without making the catalogue."""
    fewest, most = constraints
    return fewest + derive(number, "constraints", family) % (most - fewest + 1)


@lru_cache(maxsize=64)
def build(departments: int, products: int, constraints: tuple[int, int], distractors: int, number: int) -> Catalogue:
    """The catalogue of this number. Each family has `distractors` products that miss one constraint of its goal."""
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
    """A goal that the product fulfills, with `count` constraints, one of them an attribute; and what they constrain."""
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
    """A product of the same type that misses only the constraint `missing` of the goal."""
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
    """The attributes of a twin in a new order. `missing` and some that the goal does not name are replaced."""
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
