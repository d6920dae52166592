"""The environment `craft`: tasks, acts and rewards.

`maps.py` draws maps, `tree.py` has items and goals, `state.py` the rules, `views.py` the observations, and `planner.py`
the expert.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import read_index
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.craft import views
from palaestra.envs.worlds.craft.maps import draw_map
from palaestra.envs.worlds.craft.planner import next_act, solution
from palaestra.envs.worlds.craft.state import ACTS, State, act
from palaestra.envs.worlds.craft.tree import DEEPEST, KINDS, Goal, Kind, draw_goal, goals
from palaestra.errors import RecipeError
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
Depth = tuple[Annotated[int, pydantic.Field(ge=1, le=DEEPEST)], Annotated[int, pydantic.Field(ge=1, le=DEEPEST)]]
TRIES = 200  # most maps that are drawn in search of one with a short enough solution
REFUSE = Refusals("environment: craft")


@register("environment", "craft")
class Craft(KeepsState[State]):
    """Gather, make and place things in a grid until the agent has what the goal asks for, from wood to an iron pickaxe.

    `north`, `east`, `south` and `west` turn the agent to that side, and it walks if there is grass. `turn left` and
    `turn right` only turn it. `attack` hits what it faces: a tree gives wood, rock gives stone if the agent has a
    wooden pickaxe, ore gives iron if it has a stone pickaxe, and things that it placed come back. `use` opens a chest
    and takes what is inside. `craft planks` makes two planks of one wood. `craft sticks` makes two sticks of one of
    these planks, and `craft table` takes two of them. A pickaxe is made beside a table, of one stick and one planks,
    stone or iron. `place table` and `place planks` put a thing on the grass in front of the agent.

    Args:
        size: side of the square map, 5–32. Higher: longer ways. Usual: 9.
        density: share of places that are not grass, 0.1–0.6. Higher: more to find, more in the way. Usual: 0.3.
        depth: smallest and largest depth of the goal in the tech tree: wood (1), planks (2), sticks and table (3),
            wooden pickaxe (4), stone (5), stone pickaxe (6), iron (7), iron pickaxe (8). Each depth is equally
            frequent. Higher: longer episodes, rarer success. Usual: 1 to 6.
        kinds: kinds of goals: "atomic" (one or more of an item of depth 1 or 2), "long" (one deeper item), "open" (a
            purpose that several items serve, such as `something to break rock with`).
        most: largest number of an item that an atomic goal asks for, 1–3. Higher: longer episodes.
        sight: number of tiles that the agent sees to each side, 1–15; 3 is a window of 7 × 7. Higher: less to search.
        text: "nearest" tells where the nearest tile of each kind in sight is. "window" shows a sign for every tile in
            sight.
        names: "plain", "renamed" (invented words for all things) or "shuffled" (each task draws which invented word
            means what; needs `manual`). Acts use the same names.
        manual: say in every observation what everything is made of.
        noise: probability that an act fails, so that nothing happens.
        reward: "goal" (1 when the agent reaches the goal) or "items" (1 for each kind of item when the agent first has
            it).
        max_turns: turns after which the episode is cut off. The expert solves every task in three quarters of them.

    Per step, `info` has `process`, 1 for the act that the expert would choose; `executable`, 0 for an act that cannot
    be read or done; `items`, the number of different items that the agent has had; and `stratum`, the depth of the
    goal. `vector` and `image` show the window, in the image with one pixel for each tile. `imagine` returns what an act
    would show, without acting.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process", "executable", "items", "stratum"})

    def __init__(
        self,
        *,
        size: Annotated[int, pydantic.Field(ge=5, le=32)] = 9,
        density: Annotated[float, pydantic.Field(ge=0.1, le=0.6)] = 0.3,
        depth: Depth = (1, 6),
        kinds: tuple[Kind, ...] = KINDS,
        most: Annotated[int, pydantic.Field(ge=1, le=3)] = 2,
        sight: Annotated[int, pydantic.Field(ge=1, le=15)] = 3,
        text: views.Text = "nearest",
        names: views.Names = "plain",
        manual: bool = False,
        noise: Fraction = 0.0,
        reward: Literal["goal", "items"] = "goal",
        max_turns: PositiveInt = 80,
    ) -> None:
        _refuse_impossible(kinds, depth, most, names=names, manual=manual)
        REFUSE.when(
            round(density * size * size) >= size * size - 1 or size * size * density < 9,
            f"a map of {size} × {size} with density {density:g} has no room for the nine tiles that goals need.",
            "Raise `size` or `density`.",
        )
        self._params = {
            "size": size,
            "density": density,
            "depth": list(depth),
            "kinds": list(kinds),
            "most": most,
            "max_turns": max_turns,
        }
        self._sight, self._text, self._names, self._manual = sight, text, names, manual
        self._noise, self._reward = noise, reward
        self.action_count = len(ACTS)
        self.vector_size = views.vector_size(sight)
        self._max_turns = max_turns

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        called = views.names_of(self._names if self._names != "shuffled" else "plain", 0)
        made = views.manual(called) if self._names != "shuffled" else "Every message says what is made of what."
        table, planks = called["table"], called["planks"]
        return write_manual(
            "You are on a map of square tiles. Every message names the goal, what you have, what you face, and what is "
            f"near. Gather and make things until you have what the goal asks for. {made}",
            {
                "north, east, south or west": "turn to that side, and walk if there is grass",
                "turn left or turn right": "turn without walking",
                "attack": "gather what you face",
                "use": "open the chest that you face and take what is inside",
                "craft ITEM": f"make an item of what you have; a pickaxe is made beside a placed {table}",
                f"place {table} or place {planks}": "put it on the grass in front of you",
            },
            example="attack",
            ending=f"The episode succeeds when you have what the goal asks for.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` maps with goals. The split "train" shares no seed with other splits."""
        return seeded_tasks("craft", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The map, the place and direction of the agent, the item in the chest, and the goal."""
        return as_json(replace(self._first(task), seed=0))

    def difficulty(self, task: Task) -> float:
        """The goal's depth."""
        p = {**self._params, **task.params}
        return float(_goal(tuple(p["kinds"]), tuple(p["depth"]), p["most"], task.seed).depth)  # type: ignore[arg-type]

    def reset(self, task: Task) -> StepResult:
        self._max_turns = {**self._params, **task.params}["max_turns"]
        self.state = state = self._first(task)
        info = {"success": False, "stratum": str(state.goal.depth)}
        return single(AGENT, self._observe(state), info=info)

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        meant = self._read(actions[AGENT].value)
        wanted = next_act(before)
        fails = self._noise > 0 and derive(before.seed, "noise", before.turn) / 2**63 < self._noise
        after = act(before, meant if meant is not None and not fails else "nothing")
        self.state = after = _later(after)
        over = after.goal.met(after.holds)
        new = len(after.had) - len(before.had)
        told = {
            "process": float(meant == wanted),
            "executable": float(meant is not None and (fails or after.effect != "nothing")),
            "items": float(len(after.had)),
        }
        return single(
            AGENT,
            self._observe(after),
            reward=float(over) if self._reward == "goal" else float(new),
            over=over,
            cut=after.turn >= self._max_turns,
            act=told,
            readable=meant is not None,
            info={"success": over, "stratum": str(after.goal.depth)},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act of the planner, which sees the whole map."""
        chosen = next_act(self.state) or ACTS[0]  # without a way to the goal, any act will do
        return Action(text=self._spell(chosen), value=ACTS.index(chosen))

    def imagine(self, text: str) -> Observation:
        """The observation after an act, by the rules and without noise. The episode does not change."""
        state = self.state
        return self._observe(_later(act(state, self._read(text) or "nothing")))

    # ---- playing ------------------------------------------------------------------------------------------
    @property
    def _called(self) -> dict[str, str]:
        """Thing → its name in this task."""
        return views.names_of(self._names, self.state.seed)

    def _first(self, task: Task) -> State:
        world = {**self._params, **task.params}
        return build(
            size=world["size"],
            density=world["density"],
            depth=tuple(world["depth"]),
            kinds=tuple(world["kinds"]),
            most=world["most"],
            turns=world["max_turns"] * 3 // 4,
            seed=task.seed,
        )

    def _read(self, value: Any) -> str | None:
        index = read_index(value, [self._spell(known) for known in ACTS])
        return None if index is None else ACTS[index]

    def _spell(self, meant: str) -> str:
        """An act, written with the names of the task."""
        word, _, item = meant.partition(" ")
        return f"{word} {self._called[item]}" if word in ("craft", "place") else meant

    def _observe(self, state: State) -> Observation:
        text = views.describe(state, self._called, self._text, self._sight)
        return Observation(
            text=f"{views.manual(self._called)} {text}" if self._manual else text,
            vector=views.vector(state, self._sight),
            image=views.picture(state, self._sight),
            legal=tuple(self._spell(known) for known in ACTS),
            state_key=f"{state.seed}/{state.place} {state.facing}/{state.inventory}/{_digest(state)}",
        )


# ---- tasks ------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=4096)
def build(
    *, size: int, density: float, depth: tuple[int, int], kinds: tuple[Kind, ...], most: int, turns: int, seed: int
) -> State:
    """The first state of a task. Maps are drawn until the expert needs at most `turns` acts.

    Raises: RecipeError, if there is no such map among `TRIES`.
    """
    goal = _goal(kinds, depth, most, seed)
    for number in range(TRIES):
        tiles, place = draw_map(size, density, derive(seed, number))
        facing = ("north", "east", "south", "west")[derive(seed, "facing", number) % 4]
        inside = ("wood", "stone", "iron")[derive(seed, "chest", number) % 3]
        state = State(tiles=tiles, place=place, facing=facing, goal=goal, seed=seed, inside=inside)
        acts = solution(state, turns)
        if acts:
            return state
    raise RecipeError(
        where="environment: craft",
        what=f"no map was found on which the goal `{views.spell_goal(goal, views.names_of('plain', 0))}` takes at most "
        f"{turns} acts.",
        remedy="Raise `max_turns` or `density`, or lower `depth`.",
    )


def _goal(kinds: tuple[Kind, ...], depth: tuple[int, int], most: int, seed: int) -> Goal:
    return draw_goal(goals(kinds, *depth, most), seed)


def _later(state: State) -> State:
    return replace(state, turn=state.turn + 1)


def _digest(state: State) -> str:
    """A number for the present map. Equal maps have equal numbers."""
    return f"{derive(0, *(kind for row in state.tiles for kind in row)):x}"


def _refuse_impossible(kinds: tuple[Kind, ...], depth: Depth, most: int, *, names: str, manual: bool) -> None:
    REFUSE.when_reversed(depth=depth)
    REFUSE.when(
        not goals(kinds, *depth, most),
        f"no goal has a depth from {depth[0]} to {depth[1]} and is of these `kinds`: {', '.join(kinds) or 'none'}.",
        "Atomic goals have depth 1 or 2, and long ones 3 to 8. Add `kinds` or change `depth`.",
    )
    REFUSE.when(
        names == "shuffled" and not manual,
        "with `names: shuffled`, the agent cannot know what is made of what.",
        "Set `manual: true`, which says it in every observation, or set `names: renamed`.",
    )
