"""The tech tree: which tiles give items, what is made of what, how deep each item lies, and the goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from palaestra.data import derive

Kind = Literal["atomic", "long", "open"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Source:
    """A tile that gives an item when the agent attacks it and has the tool, if it takes one."""

    tile: str
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The ingredients of one `craft`, how many things it makes, and whether it takes a table beside the agent."""

    needs: Mapping[str, int]
    makes: int = 1
    table: bool = False


SOURCES: dict[str, Source] = {
    "wood": Source("tree"),
    "stone": Source("rock", "wooden pickaxe"),
    "iron": Source("ore", "stone pickaxe"),
}
RECIPES: dict[str, Recipe] = {
    "planks": Recipe({"wood": 1}, makes=2),
    "sticks": Recipe({"planks": 1}, makes=2),
    "table": Recipe({"planks": 2}),
    "wooden pickaxe": Recipe({"sticks": 1, "planks": 1}, table=True),
    "stone pickaxe": Recipe({"sticks": 1, "stone": 1}, table=True),
    "iron pickaxe": Recipe({"sticks": 1, "iron": 1}, table=True),
}
# Item → depth, in the order in which items can be had. The planner makes the deepest ingredient of a recipe first, so
# that making one does not use up another.
DEPTH = {"wood": 1, "planks": 2, "sticks": 3, "table": 3, "wooden pickaxe": 4, "stone": 5, "stone pickaxe": 6,
         "iron": 7, "iron pickaxe": 8}  # fmt: skip
ITEMS = tuple(DEPTH)
DEEPEST = max(DEPTH.values())
PLACEABLE = ("table", "planks")
OPEN = {
    "something to break rock with": ("wooden pickaxe", "stone pickaxe", "iron pickaxe"),
    "something to build walls with": ("planks", "stone"),
    "something to work at": ("table",),
    "a handle for a tool": ("sticks",),
    "something to melt": ("iron",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the agent must have: `count` of any of the items. `words`: the text of an open goal."""

    items: tuple[str, ...]
    count: int = 1
    words: str = ""

    @property
    def depth(self) -> int:
        """The depth of the item in `soonest`."""
        return DEPTH[self.soonest]

    @property
    def soonest(self) -> str:
        """The item of the goal with the smallest depth."""
        return min(self.items, key=lambda item: (DEPTH[item], item))

    def met(self, inventory: Mapping[str, int]) -> bool:
        """Whether an inventory, item → count, reaches the goal."""
        return any(inventory.get(item, 0) >= self.count for item in self.items)


def goals(kinds: tuple[Kind, ...], shallowest: int, deepest: int, most: int) -> list[Goal]:
    """All goals of these kinds and depths.

    Args:
        shallowest, deepest: smallest and largest depth.
        most: largest count in an atomic goal. Atomic goals are about items of depth 1 and 2, long goals about one
            deeper item.
    """
    found: list[Goal] = []
    inside = [item for item in ITEMS if shallowest <= DEPTH[item] <= deepest]
    if "atomic" in kinds:
        found += [Goal(items=(item,), count=n) for item in inside if DEPTH[item] <= 2 for n in range(1, most + 1)]
    if "long" in kinds:
        found += [Goal(items=(item,)) for item in inside if DEPTH[item] > 2]
    if "open" in kinds:
        made = [Goal(items=items, words=words) for words, items in OPEN.items()]
        found += [goal for goal in made if shallowest <= goal.depth <= deepest]
    return found


def draw_goal(choices: list[Goal], seed: int) -> Goal:
    """Draw a goal: first the depth, evenly, and then evenly among the goals of this depth."""
    generator = np.random.default_rng(derive(seed, "goal"))
    depths = sorted({goal.depth for goal in choices})
    depth = depths[int(generator.integers(len(depths)))]
    same = [goal for goal in choices if goal.depth == depth]
    return same[int(generator.integers(len(same)))]
