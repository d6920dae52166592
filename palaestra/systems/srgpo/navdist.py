"""The environment `navdist`: find a hidden target on a walled grid, with a verifier that scores each step.

The environment is deterministic; tasks differ by their seed only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice, read_choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import PositiveInt, register

AGENT = "walker"
MOVES = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
ACTIONS = tuple(MOVES)
WALLS = 0.2  # share of cells that become walls if the rest stays connected
RECENT = 6  # the number of past cells that the text names
Cell = tuple[int, int]  # column, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One grid: its free cells, the start, and the distance of each free cell from the target."""

    size: int
    start: Cell
    target: Cell
    distance: Mapping[Cell, int]  # of every free cell

    def next(self, cell: Cell, move: str) -> Cell | None:
        """The cell after a move; None if a wall or the border is in the way."""
        beyond = (cell[0] + MOVES[move][0], cell[1] + MOVES[move][1])
        return beyond if beyond in self.distance else None

    def open(self, cell: Cell) -> list[str]:
        """The moves that are possible, in the order of `ACTIONS`."""
        return [move for move in ACTIONS if self.next(cell, move) is not None]

    def sees(self, cell: Cell, sight: int) -> bool:
        """Whether the target is at most `sight` cells away; walls do not hide it."""
        return abs(cell[0] - self.target[0]) + abs(cell[1] - self.target[1]) <= sight


# ---- building ---------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def build(size: int, longest: int, sight: int, seed: int) -> Field:
    """A grid with the target out of sight of the start, and at most `longest` moves away if possible."""
    draw = random.Random(seed)
    free = _walled(size, draw)
    target = draw.choice(sorted(free))
    distance = _distances(free, target)
    hidden = [c for c in sorted(free) if abs(c[0] - target[0]) + abs(c[1] - target[1]) > sight] or sorted(free)
    near = [cell for cell in hidden if distance[cell] <= longest]
    start = draw.choice(near) if near else min(hidden, key=lambda cell: distance[cell])
    return Field(size=size, start=start, target=target, distance=distance)


def _walled(size: int, draw: random.Random) -> set[Cell]:
    """The free cells after walls are placed one by one, each only if the rest stays connected."""
    free = {(x, y) for x in range(size) for y in range(size)}
    for cell in draw.sample(sorted(free), int(WALLS * size * size)):
        rest = free - {cell}
        if len(_distances(rest, next(iter(rest)))) == len(rest):
            free = rest
    return free


def _distances(free: set[Cell], target: Cell) -> dict[Cell, int]:
    found, waiting = {target: 0}, deque([target])
    while waiting:
        x, y = waiting.popleft()
        for right, down in MOVES.values():
            beyond = (x + right, y + down)
            if beyond in free and beyond not in found:
                found[beyond] = found[x, y] + 1
                waiting.append(beyond)
    return found


# ---- the environment --------------------------------------------------------------------------------------
def _drawn(world: Mapping[str, Any], seed: int) -> tuple[int, Field]:
    """The number of the grid of a seed, and the grid."""
    fields = world["fields"]
    number = seed // 2 % fields if fields else seed  # the last bit of a seed tells its split
    return number, build(world["size"], int(0.75 * world["max_turns"]), world["sight"], number)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far one episode is.

    Attributes:
        seed, name: of the task and of the grid. walked: cells in order, the present one last. moves: what was tried.
    """

    field: Field
    seed: int
    name: str
    walked: tuple[Cell, ...]
    moves: tuple[str, ...] = ()

    @property
    def here(self) -> Cell:
        """The present cell."""
        return self.walked[-1]


@register("environment", "navdist")
class Navdist(KeepsState[State]):
    """Walk to a target that is visible only from nearby; what has been walked is remembered for you.

    An observation has the agent's cell, the open ways, the cells that it has visited, and the target's place once it is
    in sight. Two episodes are in the same state only if they have visited the same cells, so states rarely repeat: a
    comparison of equal states finds few, and a verified score of each step says more.

    Args:
        size: cells per side, 5–16. Higher: longer searches. Usual: 8.
        max_turns: turns until the episode is truncated. The target is at most 75 % of them away. Usual: 20.
        sight: the distance in moves (walls ignored) from which the target is seen. Higher: easier. Usual: 3.
        process: "verified": a step scores 1 if it came nearer to the target or brought it into sight, else 0. "random":
            a coin toss without information, which depends on the task's seed and the moves so far.
        fields: 0 makes a new grid for every seed; with k > 0 every seed plays one of k grids.

    Reward: 1 for reaching the target, else 0. A move against a wall, or one that cannot be read, costs a turn. The
    score is in `info["process"]`. `vector` is one-hot: the agent's cell; visited cells; open ways; the target's column
    and row relative to the agent, if it is in sight.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process"})  # columns that tables made of it have
    actions: tuple[str, ...] = ACTIONS
    action_count: int = len(ACTIONS)

    def __init__(
        self,
        *,
        size: Annotated[int, pydantic.Field(ge=5, le=16)] = 8,
        max_turns: PositiveInt = 20,
        sight: PositiveInt = 3,
        process: Literal["verified", "random"] = "verified",
        fields: Annotated[int, pydantic.Field(ge=0)] = 0,
    ) -> None:
        self._params = {"size": size, "max_turns": max_turns, "sight": sight, "fields": fields}
        self._process = process
        self._size, self._sight, self._max_turns = size, sight, max_turns
        self.vector_size = 2 * size * size + len(MOVES) + 2 * (2 * sight + 1)

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        size, sight, turns = (self._params[name] for name in ("size", "sight", "max_turns"))
        return write_manual(
            f"You look for a hidden target on a grid of {size} by {size} cells, some of which are walls. Every message "
            "has your cell, the directions that are open, the target, and the cells that you came from, the latest "
            "one first. A cell is a letter and a number, such as c4: the letters go on to the east, and the numbers to "
            f"the south. You see the target when it is at most {sight} cells away, counted in steps as if there were "
            "no walls. The message then says how far it is, such as `2 east 1 south`.",
            {", ".join(ACTIONS): "go one cell in this direction, if it is open"},
            example=ACTIONS[0],
            ending="An answer that leads into a wall or out of the grid, or that cannot be read, costs a turn. The "
            f"episode succeeds when you reach the target.{turn_limit(turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` grids; splits never share a seed."""
        return seeded_tasks("navdist", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The grid, where one starts, and the target."""
        return as_json(_drawn({**self._params, **task.params}, task.seed)[1])

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        self._sight, self._max_turns = world["sight"], world["max_turns"]
        number, field = _drawn(world, task.seed)
        self.state = State(field=field, seed=task.seed, name=str(number), walked=(field.start,))
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        move = read_choice(actions[AGENT].value, ACTIONS)
        there = before.field.next(before.here, move) if move else None
        walked = before.walked if there is None else (*before.walked, there)
        self.state = after = replace(before, walked=walked, moves=(*before.moves, move or "?"))
        won = after.here == after.field.target
        cut = not won and len(after.moves) >= self._max_turns
        return single(
            AGENT,
            None if won else self._observe(after),
            reward=float(won),
            over=won,
            cut=cut,
            act={"process": self._score(before, after)},
            readable=move is not None,
            info={"success": won} if won or cut else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """A step of a shortest way; it knows where the target is, also while the agent does not."""
        field, here = self.state.field, self.state.here
        move = min(field.open(here), key=lambda m: field.distance[field.next(here, m)])  # type: ignore[index]
        return choice(move, ACTIONS)

    # ---- scores and observations --------------------------------------------------------------------------
    def _score(self, before: State, after: State) -> float:
        if self._process == "random":
            return float(derive(after.seed, "coin", *after.moves) % 2)
        field = after.field
        nearer = field.distance[after.here] < field.distance[before.here]
        return float(nearer or field.sees(after.here, self._sight) > field.sees(before.here, self._sight))

    def _observe(self, state: State) -> Observation:
        field, here = state.field, state.here
        open_ways = field.open(here)
        offset = (field.target[0] - here[0], field.target[1] - here[1]) if field.sees(here, self._sight) else None
        walked = sorted(set(state.walked))
        return Observation(
            text=_describe(state.walked, open_ways, offset),
            vector=_vector(field.size, self._sight, here, walked, open_ways, offset),
            legal=open_ways,
            state_key=f"{state.name}/{_place(here)}/{''.join(_place(cell) for cell in walked)}",
        )


def _place(cell: Cell) -> str:
    return f"{chr(ord('a') + cell[0])}{cell[1] + 1}"


def _describe(walked: tuple[Cell, ...], open_ways: list[str], offset: Cell | None) -> str:
    """`at c4. open north east. target 2 east 1 south. came from c3 b3.`"""
    text = f"at {_place(walked[-1])}. open {' '.join(open_ways)}. "
    if offset is None:
        text += "target not in sight."
    else:
        across, down = ("east" if offset[0] > 0 else "west"), ("south" if offset[1] > 0 else "north")
        ways = ((abs(offset[0]), across), (abs(offset[1]), down))
        text += f"target {' '.join(f'{n} {way}' for n, way in ways if n)}."
    recent = [_place(cell) for cell in walked[-2 : -2 - RECENT : -1]]
    return text + (f" came from {' '.join(recent)}." if recent else "")


def _vector(
    size: int, sight: int, here: Cell, walked: list[Cell], open_ways: list[str], offset: Cell | None
) -> np.ndarray:
    cells, width = size * size, 2 * sight + 1
    found = np.zeros(2 * cells + len(MOVES) + 2 * width, np.float32)
    found[here[0] + size * here[1]] = 1
    found[[cells + x + size * y for x, y in walked]] = 1
    found[[2 * cells + ACTIONS.index(way) for way in open_ways]] = 1
    if offset is not None:
        found[2 * cells + len(MOVES) + sight + offset[0]] = 1
        found[2 * cells + len(MOVES) + width + sight + offset[1]] = 1
    return found
