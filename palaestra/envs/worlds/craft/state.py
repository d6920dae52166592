"""The state of an episode, and what each act does to it.

The environment plays by these rules and the expert plans by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from palaestra.envs.worlds.craft.maps import CHEST, GRASS, OPENED, TABLE, TURNS, Map, Place, beside, changed, tile
from palaestra.envs.worlds.craft.tree import ITEMS, PLACEABLE, RECIPES, SOURCES, Goal

Effect = Literal["moved", "turned", "gathered", "crafted", "placed", "opened", "nothing"]
ACTS = (
    *TURNS,
    "turn left",
    "turn right",
    "attack",
    "use",
    *(f"craft {item}" for item in RECIPES),
    *(f"place {item}" for item in PLACEABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. It cannot be changed, so a snapshot is the state itself.

    Attributes:
        inside: the item in the chest.
        inventory: number of each of `ITEMS` that the agent has.
        had: items that the agent has had at any time.
        effect: what the last act did.
    """

    tiles: Map
    place: Place
    facing: str
    goal: Goal
    seed: int
    inside: str
    inventory: tuple[int, ...] = (0,) * len(ITEMS)
    had: frozenset[str] = field(default_factory=frozenset)
    turn: int = 0
    effect: Effect = "moved"

    @property
    def holds(self) -> dict[str, int]:
        """Item → how many of it the agent has."""
        return dict(zip(ITEMS, self.inventory, strict=True))

    @property
    def front(self) -> Place:
        """The place that the agent faces."""
        return beside(self.place, self.facing)

    @property
    def ahead(self) -> str:
        """The tile that the agent faces."""
        return tile(self.tiles, self.front)

    @property
    def at_table(self) -> bool:
        """Whether a table stands beside the agent."""
        return any(tile(self.tiles, beside(self.place, side)) == TABLE for side in TURNS)


def act(state: State, text: str) -> State:
    """The state after one of `ACTS`. An act that cannot be done only sets `effect` to "nothing"."""
    if text in TURNS:
        return _go(state, text)
    word, _, item = text.partition(" ")
    match word:
        case "turn":
            step = 1 if item == "right" else -1
            return replace(state, facing=TURNS[(TURNS.index(state.facing) + step) % 4], effect="turned")
        case "attack":
            return _attack(state)
        case "use" if state.ahead == CHEST:
            opened = replace(state, tiles=changed(state.tiles, state.front, OPENED), effect="opened")
            return _gain(opened, {state.inside: 1})
        case "craft":
            return _craft(state, item)
        case "place" if state.holds[item] and state.ahead == GRASS:
            placed = replace(state, tiles=changed(state.tiles, state.front, item), effect="placed")
            return _gain(placed, {item: -1})
    return replace(state, effect="nothing")


def _go(state: State, side: str) -> State:
    there = beside(state.place, side)
    free = tile(state.tiles, there) == GRASS
    turned = state.facing != side
    effect: Effect = "moved" if free else "turned" if turned else "nothing"
    return replace(state, place=there if free else state.place, facing=side, effect=effect)


def _attack(state: State) -> State:
    for item, source in SOURCES.items():
        if source.tile == state.ahead and (source.tool is None or state.holds[source.tool]):
            bare = replace(state, tiles=changed(state.tiles, state.front, GRASS), effect="gathered")
            return _gain(bare, {item: 1})
    if state.ahead in PLACEABLE:  # what was placed can be taken up again
        bare = replace(state, tiles=changed(state.tiles, state.front, GRASS), effect="gathered")
        return _gain(bare, {state.ahead: 1})
    return replace(state, effect="nothing")


def _craft(state: State, item: str) -> State:
    recipe, holds = RECIPES[item], state.holds
    if any(holds[name] < count for name, count in recipe.needs.items()) or (recipe.table and not state.at_table):
        return replace(state, effect="nothing")
    used = {name: -count for name, count in recipe.needs.items()}
    return _gain(replace(state, effect="crafted"), used | {item: recipe.makes})


def _gain(state: State, change: Mapping[str, int]) -> State:
    counts = tuple(count + change.get(item, 0) for item, count in zip(ITEMS, state.inventory, strict=True))
    new = {item for item, count in change.items() if count > 0}
    return replace(state, inventory=counts, had=state.had | new)
