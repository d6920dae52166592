"""The expert: it follows the tech tree down to the first thing that is missing, and takes a shortest way to it.

It uses the whole state, including what the agent does not see.
"""

from __future__ import annotations

from palaestra.envs.worlds.craft.maps import CHEST, GRASS, PLANKS, TABLE, TREE, TURNS, approach, beside, places, tile
from palaestra.envs.worlds.craft.state import State, act
from palaestra.envs.worlds.craft.tree import DEPTH, RECIPES, SOURCES


def next_act(state: State) -> str | None:
    """The next act towards the goal; None if there is none."""
    chosen = _pursue(state, state.goal.soonest, state.goal.count)
    # If no act leads on, something that can be removed may block the way.
    return chosen or _reach(state, PLANKS, "attack") or _reach(state, TABLE, "attack") or _reach(state, TREE, "attack")


def solution(state: State, most: int) -> list[str] | None:
    """All acts to the goal; None if there are more than `most` or the goal cannot be reached."""
    acts: list[str] = []
    while not state.goal.met(state.holds):
        chosen = next_act(state)
        if chosen is None or len(acts) == most:
            return None
        acts.append(chosen)
        state = act(state, chosen)
    return acts


def _pursue(state: State, item: str, count: int) -> str | None:
    """The next act towards `count` of an item. The agent has fewer."""
    if item in SOURCES:
        return _gather(state, item)
    recipe = RECIPES[item]
    missing = count - state.holds[item]
    crafts = -(-missing // recipe.makes)
    if recipe.table and not state.at_table and not places(state.tiles, TABLE) and not state.holds["table"]:
        return _pursue(state, "table", 1)
    # The deepest ingredient comes first, because making it can use up the others.
    for name in sorted(recipe.needs, key=lambda one: -DEPTH[one]):
        if state.holds[name] < recipe.needs[name] * crafts:
            return _pursue(state, name, recipe.needs[name] * crafts)
    if recipe.table and not state.at_table:
        return _reach_table(state)
    return f"craft {item}"


def _gather(state: State, item: str) -> str | None:
    source = SOURCES[item]
    if source.tool is not None and not state.holds[source.tool]:
        return _pursue(state, source.tool, 1)
    found = _reach(state, source.tile, "attack")
    if found is None and state.inside == item:
        return _reach(state, CHEST, "use")
    return found


def _reach_table(state: State) -> str | None:
    if places(state.tiles, TABLE):
        return _reach(state, TABLE, "use")  # it is never used: the way there ends beside it
    if state.ahead == GRASS:
        return "place table"
    free = [side for side in TURNS if tile(state.tiles, beside(state.place, side)) == GRASS]
    # Turn to a free side. A walk to it would leave this place.
    turn = (TURNS.index(free[0]) - TURNS.index(state.facing)) % 4 if free else 0
    return None if not free else "turn left" if turn == 3 else "turn right"


def _reach(state: State, kind: str, then: str) -> str | None:
    """The next act towards the nearest tile of a kind: walk to it, face it, or do `then` to it. None without a way."""
    found = approach(state.tiles, state.place, kind)
    if found is None:
        return None
    sides, last = found
    if sides:
        return sides[0]
    return then if state.facing == last else last
