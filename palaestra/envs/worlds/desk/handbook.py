"""The handbook: for each kind of change, a tree of conditions that says whether to make, refuse or transfer it.

A handbook is drawn from a number: the same number gives the same handbook. A tree of depth d has 2^d leaves and
2^d - 1 conditions. No path has a condition twice, so every leaf can be reached.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from palaestra.data import derive
from palaestra.envs.worlds.desk.kinds import GRANT, KINDS, REFUSE, TRANSFER, VERDICTS, Kind, kinds_of
from palaestra.envs.worlds.desk.records import TABLES, Database, Value, allowed, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on a field of a record, true if the value equals `equals` or is at most `at_most`.

    Attributes:
        text, otherwise: the words for a true and for a false condition.
    """

    table: str
    field: str
    text: str
    otherwise: str
    equals: Value | None = None
    at_most: int | None = None

    def holds(self, value: Value) -> bool:
        return value == self.equals if self.at_most is None else int(value) <= self.at_most

    def values(self, answer: bool) -> tuple[Value, ...]:
        """All values that the field can have at the start, for which the condition is true, or false."""
        first = [value for value in allowed(self.table, self.field) if value != "cancelled"]
        return tuple(value for value in first if self.holds(value) == answer)


CONDITIONS = (
    Condition(table="users", field="tier", equals="gold", text="the tier is gold", otherwise="the tier is plain"),
    Condition(
        table="users", field="country", equals="home", text="the country is home", otherwise="the country is abroad"
    ),
    Condition(
        table="orders",
        field="status",
        equals="pending",
        text="the status is pending",
        otherwise="the status is not pending",
    ),
    Condition(table="orders", field="age", equals="new", text="the age is new", otherwise="the age is old"),
    Condition(
        table="payments", field="method", equals="card", text="the method is card", otherwise="the method is not card"
    ),
    Condition(
        table="payments",
        field="amount",
        at_most=50,
        text="the amount is at most 50",
        otherwise="the amount is above 50",
    ),
    Condition(table="items", field="stock", equals="full", text="the stock is full", otherwise="the stock is empty"),
    Condition(
        table="items", field="price", equals="regular", text="the price is regular", otherwise="the price is reduced"
    ),
    Condition(
        table="plans", field="contract", equals="free", text="the contract is free", otherwise="the contract is bound"
    ),
    Condition(
        table="deliveries",
        field="carrier",
        equals="post",
        text="the carrier is post",
        otherwise="the carrier is not post",
    ),
)
DEEPEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A leaf has a verdict. A fork has a condition and the trees that follow if it is true (`yes`) or false (`no`)."""

    verdict: str | None = None
    condition: Condition | None = None
    yes: Tree | None = None
    no: Tree | None = None


Path = tuple[tuple[Condition, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handbook:
    """The trees of all kinds of changes. `name`: what the agent reads instead of the text with `rules: name`."""

    name: str
    trees: Mapping[str, Tree]

    def path(self, database: Database, kind: str, key: str) -> tuple[Path, str]:
        """The conditions on the way to the leaf that applies, and its verdict. A request without a tree is granted."""
        tree, path = self.trees.get(kind), []
        if tree is None:
            return (), GRANT
        while tree.condition is not None:
            place = place_of(database, tree.condition.table, key)
            answer = place is not None and tree.condition.holds(
                database[tree.condition.table][place][tree.condition.field]
            )
            path.append((tree.condition, answer))
            tree = tree.yes if answer else tree.no
            assert tree is not None
        assert tree.verdict is not None
        return tuple(path), tree.verdict


def leaves(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All leaves of a tree: the path to each, and its verdict."""
    if tree.condition is None:
        assert tree.verdict is not None
        yield path, tree.verdict
        return
    assert tree.yes is not None and tree.no is not None
    yield from leaves(tree.yes, (*path, (tree.condition, True)))
    yield from leaves(tree.no, (*path, (tree.condition, False)))


def conditions_of(kind: Kind, tables: int) -> tuple[Condition, ...]:
    """The conditions that a tree for this kind of request may have."""
    own = ("users", "plans") if kind.about == "customer" else ("users", "orders", "payments", "items", "deliveries")
    found = [c for c in CONDITIONS if c.table in own and c.table in TABLES[:tables]]
    return tuple(c for c in found if (c.table, c.field) != (kind.table, kind.slot))  # not what it changes


@functools.lru_cache(maxsize=4096)
def draw_handbook(number: int, depth: int, tables: int) -> Handbook:
    """The handbook with this number. It has a full tree of depth `depth` for each kind of change.

    The two leaves of a last condition have different verdicts, so that each condition matters. At least one leaf of
    every tree grants.
    """
    trees = {}
    for name in kinds_of(tables):
        if KINDS[name].changes:
            rng = random.Random(derive(number, "handbook", depth, tables, name))
            tree = _draw(depth, conditions_of(KINDS[name], tables), rng)
            trees[name] = tree if any(v == GRANT for _, v in leaves(tree)) else _granting(tree)
    return Handbook(name=f"handbook {number}", trees=trees)


def _draw(depth: int, conditions: tuple[Condition, ...], rng: random.Random) -> Tree:
    condition = rng.choice(conditions)
    rest = tuple(c for c in conditions if c is not condition)
    if depth > 1:
        return Tree(condition=condition, yes=_draw(depth - 1, rest, rng), no=_draw(depth - 1, rest, rng))
    yes, no = rng.sample(VERDICTS, 2)
    if GRANT not in (yes, no) and rng.random() < 0.5:
        yes = GRANT
    return Tree(condition=condition, yes=Tree(verdict=yes), no=Tree(verdict=no))


def _granting(tree: Tree) -> Tree:
    """The tree with another verdict at its first leaf: grant."""
    if tree.condition is None:
        return Tree(verdict=GRANT)
    assert tree.yes is not None
    return Tree(condition=tree.condition, yes=_granting(tree.yes), no=tree.no)


def leaf_text(kind: str, path: Path, verdict: str) -> str:
    """A leaf as a rule in English."""
    when = " and ".join(condition.text if answer else condition.otherwise for condition, answer in path)
    does = {GRANT: "do it", REFUSE: "refuse it", TRANSFER: "transfer it"}[verdict]
    return f"{kind}: if {when}, {does}."
