"""What the agent sees: a text, a window of tiles, a vector or a small picture, and the names of things in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

import numpy as np

from palaestra.data import derive
from palaestra.envs.kit.words import drawn_names
from palaestra.envs.worlds.craft.maps import (
    CHEST,
    EDGE,
    GRASS,
    OPENED,
    ORE,
    ROCK,
    TILES,
    TREE,
    TURNS,
    WATER,
    Place,
    tile,
)
from palaestra.envs.worlds.craft.state import State
from palaestra.envs.worlds.craft.tree import ITEMS, RECIPES, SOURCES, Goal

Names = Literal["plain", "renamed", "shuffled"]
Text = Literal["nearest", "window"]
SIGNS = {"grass": ".", "tree": "t", "rock": "r", "ore": "o", "water": "w", "table": "b", "planks": "p", "chest": "c",
         "open chest": "x", "edge": "#"}  # fmt: skip
COLORS = {"grass": (96, 160, 64), "tree": (24, 88, 32), "rock": (128, 128, 128), "ore": (208, 160, 112),
          "water": (48, 96, 208), "table": (144, 96, 48), "planks": (192, 152, 96), "chest": (224, 192, 32),
          "open chest": (112, 96, 32), "edge": (0, 0, 0)}  # fmt: skip
AGENT_COLOR = (255, 0, 0)
THINGS = (*ITEMS, TREE, ROCK, ORE, WATER, CHEST, OPENED)
INVENTED = (
    "gorp",
    "dax",
    "blick",
    "wug",
    "toma",
    "fep",
    "zib",
    "lorp",
    "kiv",
    "mul",
    "nard",
    "pell",
    "quib",
    "sorn",
    "vash",
)
MOST = 4  # the vector shows larger counts as this one


@functools.lru_cache(maxsize=256)  # each act of an episode needs them
def names_of(mode: Names, seed: int) -> dict[str, str]:
    """Thing → its name: the plain one, an invented one, or an invented one that each task draws anew."""
    if mode == "plain":
        return {thing: thing for thing in THINGS}
    if mode == "renamed":
        return dict(zip(THINGS, INVENTED, strict=True))
    return drawn_names(THINGS, INVENTED, derive(seed, "names"))


def spell_goal(goal: Goal, names: Mapping[str, str]) -> str:
    """The goal in words."""
    if goal.words:
        return goal.words
    return f"{goal.count} {names[goal.items[0]]}" if goal.count > 1 else names[goal.items[0]]


def manual(names: Mapping[str, str]) -> str:
    """A text that says what everything is made of."""
    found = [
        f"{names[source.tile]} gives {names[item]}" + (f" to a {names[source.tool]}" if source.tool else "")
        for item, source in SOURCES.items()
    ]
    for item, recipe in RECIPES.items():
        needs = " and ".join(f"{count} {names[need]}" for need, count in recipe.needs.items())
        many = f"{recipe.makes} {names[item]}" if recipe.makes > 1 else names[item]
        found.append(f"{needs} make {many}" + (f" at a {names['table']}" if recipe.table else ""))
    return "; ".join(found) + "."


# ---- views ------------------------------------------------------------------------------------------------
def describe(state: State, names: Mapping[str, str], text: Text, sight: int) -> str:
    """The state in words. "nearest" tells the nearest tile of each kind in sight, "window" shows all of them."""
    holds = " ".join(f"{count} {names[item]}" for item, count in state.holds.items() if count)
    said = {"nothing": "nothing happens. "}.get(state.effect, "")
    ahead = f"facing {names.get(state.ahead, state.ahead)} {state.facing}"
    spot = f"; at {names['table']}" if state.at_table else ""
    head = f"{said}goal {spell_goal(state.goal, names)}. have {holds or 'nothing'}. {ahead}{spot}."
    if text == "window":
        rows = [" ".join(SIGNS[kind] for kind in row) for row in window(state, sight)]
        return "\n".join([head, *rows])
    return " ".join([head, *(f"{names[kind]} {_direction(*gap)}." for kind, gap in nearest(state, sight).items())])


def window(state: State, sight: int) -> list[list[str]]:
    """The tiles around the agent, (2 · sight + 1) rows of as many. The agent stands in the middle."""
    row, column = state.place
    reach = range(-sight, sight + 1)
    return [[tile(state.tiles, (row + down, column + right)) for right in reach] for down in reach]


def nearest(state: State, sight: int) -> dict[str, Place]:
    """Tile → how far down and right the nearest one in sight is, without grass and edge."""
    found: dict[str, Place] = {}
    reach = range(-sight, sight + 1)
    for down, right in sorted(((d, r) for d in reach for r in reach), key=lambda gap: (abs(gap[0]) + abs(gap[1]), gap)):
        kind = tile(state.tiles, (state.place[0] + down, state.place[1] + right))
        if kind not in (GRASS, EDGE):
            found.setdefault(kind, (down, right))
    return {kind: found[kind] for kind in TILES if kind in found}


def _direction(down: int, right: int) -> str:
    parts = [f"{abs(down)} {'south' if down > 0 else 'north'}"] if down else []
    return " ".join(parts + ([f"{abs(right)} {'east' if right > 0 else 'west'}"] if right else []))


def vector(state: State, sight: int) -> np.ndarray:
    """float32: the tiles of the window (one-hot), inventory, facing, goal, and whether a table is beside the agent."""
    shown = np.array([[TILES.index(kind) for kind in row] for row in window(state, sight)])
    tiles = np.eye(len(TILES))[shown].ravel()
    holds = np.minimum(np.array(state.inventory), MOST) / MOST
    facing = np.eye(len(TURNS))[TURNS.index(state.facing)]
    goal = np.array([item in state.goal.items for item in ITEMS], float)
    rest = [state.goal.count / MOST, float(state.at_table)]
    return np.concatenate([tiles, holds, facing, goal, rest]).astype(np.float32)


def vector_size(sight: int) -> int:
    """The length of `vector`."""
    return (2 * sight + 1) ** 2 * len(TILES) + 2 * len(ITEMS) + len(TURNS) + 2


def picture(state: State, sight: int) -> np.ndarray:
    """uint8 (2 · sight + 1, 2 · sight + 1, 3): one pixel for each tile, with the agent in the middle."""
    pixels = np.array([[COLORS[kind] for kind in row] for row in window(state, sight)], np.uint8)
    pixels[sight, sight] = AGENT_COLOR
    return pixels
