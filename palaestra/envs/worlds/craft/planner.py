"""The expert: walks down the tech tree to the first thing that is missing, and on a shortest way to where it is.

Knows the whole state, also what the agent does not see. Knows nothing of texts.
"""

from __future__ import annotations

from palaestra.envs.worlds.craft.maps import CHEST, GRASS, PLANKS, TABLE, TREE, TURNS, approach, beside, places, tile
from palaestra.envs.worlds.craft.state import State, act
from palaestra.envs.worlds.craft.tree import DEPTH, RECIPES, SOURCES


def next_act(state: State) -> str | None:
    """The act that leads on to the goal; None where nothing does."""
    chosen = _pursue(state, state.goal.soonest, state.goal.count)
    # Who walled himself in takes the walls down.
    return chosen or _reach(state, PLANKS, "attack") or _reach(state, TABLE, "attack") or _reach(state, TREE, "attack")


def solution(state: State, most: int) -> list[str] | None:
    """All acts to the goal; None if it takes more than `most`, or cannot be reached."""
    acts: list[str] = []
    while not state.goal.met(state.holds):
        chosen = next_act(state)
        if chosen is None or len(acts) == most:
            return None
        acts.append(chosen)
        state = act(state, chosen)
    return acts


def _pursue(state: State, item: str, count: int) -> str | None:
    """The next act towards having `count` of an item, of which there are fewer."""
    if item in SOURCES:
        return _gather(state, item)
    recipe = RECIPES[item]
    missing = count - state.holds[item]
    crafts = -(-missing // recipe.makes)
    if recipe.table and not state.at_table and not places(state.tiles, TABLE) and not state.holds["table"]:
        return _pursue(state, "table", 1)
    # What lies deepest comes first: making it uses up what lies less deep.
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
        return _reach(state, TABLE, "use")  # never used: whoever stands beside it is there
    if state.ahead == GRASS:
        return "place table"
    free = [side for side in TURNS if tile(state.tiles, beside(state.place, side)) == GRASS]
    # Going there would move on; turning shows the free side without a step.
    turn = (TURNS.index(free[0]) - TURNS.index(state.facing)) % 4 if free else 0
    return None if not free else "turn left" if turn == 3 else "turn right"


def _reach(state: State, kind: str, then: str) -> str | None:
    """Go to the nearest tile of a kind, face it, and do something to it."""
    found = approach(state.tiles, state.place, kind)
    if found is None:
        return None
    sides, last = found
    if sides:
        return sides[0]
    return then if state.facing == last else last
