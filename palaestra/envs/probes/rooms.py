"""Rooms: a house as a text maze, with a key, a locked door and a goal. A task's seed decides its maze."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import choice, read_choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.probes.approach import Approach
from palaestra.registry import PositiveInt, register

AGENT = "player"
NAMES = (
    *("kitchen", "hall", "library", "cellar", "attic", "study", "garden", "pantry", "chapel", "stable", "tower"),
    *("gallery", "armory", "bakery", "nursery", "parlor", "laundry", "workshop", "balcony", "crypt", "bathroom"),
    *("bedroom", "office", "vault", "porch"),
)
DIRECTIONS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
ACTIONS = (*(f"go {direction}" for direction in DIRECTIONS), "take key", "open door")
WAIT = "wait"  # an action that changes nothing and is not among the legal ones
LOOPS = 0.4  # probability that a remaining wall between neighbors becomes a passage
Room = int
Count = Annotated[int, pydantic.Field(ge=0)]


class Key(IntEnum):
    """Where the key is."""

    LYING = 0
    CARRIED = 1
    USED = 2  # it stays in the lock: the door is open


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the agent and the key are."""

    room: Room
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Maze:
    """One house: passages, start, place of the key, and goal. The locked door is the only way to the goal."""

    exits: tuple[Mapping[str, Room], ...]
    start: Room
    key: Room
    goal: Room
    length: int  # turns of the shortest solution

    def locked(self, state: State, beyond: Room) -> bool:
        """Whether the door is shut between the agent and a neighboring room."""
        return beyond == self.goal and state.key is not Key.USED

    def next(self, state: State, action: str) -> State | None:
        """The state after an action, or None if the action is impossible here."""
        exits = self.exits[state.room]
        if action == "take key" and state.key is Key.LYING and state.room == self.key:
            return State(room=state.room, key=Key.CARRIED)
        if action == "open door" and state.key is Key.CARRIED and self.goal in exits.values():
            return State(room=state.room, key=Key.USED)
        beyond = exits.get(action.removeprefix("go "))
        if beyond is None or self.locked(state, beyond):
            return None
        return State(room=beyond, key=state.key)

    def ways(self) -> tuple[dict[Room, int], dict[Room, int]]:
        """Distances to the key and to the door from every room but the goal."""
        door = next(iter(self.exits[self.goal].values()))
        return _distances(self.exits, self.key, avoid=self.goal), _distances(self.exits, door, avoid=self.goal)

    def left(self, state: State, ways: tuple[dict[Room, int], dict[Room, int]]) -> int:
        """The number of turns of a shortest solution from here. `ways`: as the method gives them."""
        to_key, to_door = ways
        if state.room == self.goal:
            return 0
        if state.key is Key.LYING:
            return to_key[state.room] + 1 + to_door[self.key] + 2  # take the key, open the door, go through
        return to_door[state.room] + (2 if state.key is Key.CARRIED else 1)

    def legal(self, state: State) -> list[str]:
        """The possible actions, in the order of `ACTIONS`."""
        return [action for action in ACTIONS if self.next(state, action) is not None]


# ---- building ---------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def build(rooms: int, shortest: int, longest: int, seed: int) -> Maze:
    """A maze whose shortest solution takes `shortest` to `longest` turns. If 20 draws give none, the nearest."""
    draw = random.Random(seed)
    found: list[Maze] = []
    for _ in range(20):
        exits, goal = _passages(rooms, draw)
        fitting = list(_placements(exits, goal))
        best = min(_misfit(maze, shortest, longest) for maze in fitting)
        found.append(draw.choice([maze for maze in fitting if _misfit(maze, shortest, longest) == best]))
        if best == 0:
            return found[-1]
    return min(found, key=lambda maze: _misfit(maze, shortest, longest))


def _misfit(maze: Maze, shortest: int, longest: int) -> int:
    return max(shortest - maze.length, maze.length - longest, 0)


def _passages(rooms: int, draw: random.Random) -> tuple[tuple[dict[str, Room], ...], Room]:
    """The exits of each room, and the goal. Passages form a random tree with some loops; the goal is a leaf of it."""
    sides = [(room, direction, beyond) for room in range(rooms) for direction, beyond in _neighbors(room, rooms)]
    draw.shuffle(sides)
    exits: tuple[dict[str, Room], ...] = tuple({} for _ in range(rooms))
    inside = {draw.randrange(rooms)}
    while len(inside) < rooms:
        room, direction, beyond = next(side for side in sides if side[0] in inside and side[2] not in inside)
        _join(exits, room, direction, beyond)
        inside.add(beyond)
        draw.shuffle(sides)
    goal = draw.choice([room for room in range(rooms) if len(exits[room]) == 1])
    for room, direction, beyond in sides:
        if room < beyond and goal not in (room, beyond) and draw.random() < LOOPS:
            _join(exits, room, direction, beyond)
    return tuple({d: one[d] for d in DIRECTIONS if d in one} for one in exits), goal


def _neighbors(room: Room, rooms: int) -> Iterator[tuple[str, Room]]:
    columns = columns_of(rooms)
    for direction, (right, down) in DIRECTIONS.items():
        x, y = room % columns + right, room // columns + down
        if 0 <= x < columns and y >= 0 and x + y * columns < rooms:
            yield direction, x + y * columns


def columns_of(rooms: int) -> int:
    """The number of columns of the plan. The last row may be shorter."""
    return int(np.ceil(np.sqrt(rooms)))


def _join(exits: tuple[dict[str, Room], ...], room: Room, direction: str, beyond: Room) -> None:
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    exits[room][direction] = beyond
    exits[beyond][opposite[direction]] = room


def _placements(exits: tuple[dict[str, Room], ...], goal: Room) -> Iterator[Maze]:
    """A maze for each choice of the start and of the key's place."""
    door = next(iter(exits[goal].values()))
    rooms = [room for room in range(len(exits)) if room != goal]
    to_door = _distances(exits, door, avoid=goal)
    for key in rooms:
        to_key = _distances(exits, key, avoid=goal)
        for start in rooms:
            length = to_key[start] + 1 + to_door[key] + 2  # take the key, open the door, go through
            yield Maze(exits=exits, start=start, key=key, goal=goal, length=length)


def _distances(exits: tuple[Mapping[str, Room], ...], target: Room, *, avoid: Room) -> dict[Room, int]:
    found, waiting = {target: 0}, deque([target])
    while waiting:
        room = waiting.popleft()
        for beyond in exits[room].values():
            if beyond not in found and beyond != avoid:
                found[beyond] = found[room] + 1
                waiting.append(beyond)
    return found


def solve(maze: Maze, state: State) -> list[str]:
    """The actions of a shortest solution from `state`, found by breadth-first search."""
    paths: dict[State, list[str]] = {state: []}
    waiting = deque([state])
    while waiting:
        here = waiting.popleft()
        if here.room == maze.goal:
            return paths[here]
        for action in maze.legal(here):
            after = maze.next(here, action)
            if after is not None and after not in paths:
                paths[after] = [*paths[here], action]
                waiting.append(after)
    return []


# ---- the environment --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The state of one episode.

    Attributes:
        ways: distances in the maze, as `Maze.ways` gives them. seed: of the task. name: of the maze.
        place: place on the approach, or its length once the agent is in the house. said: result of the last action.
    """

    maze: Maze
    ways: tuple[dict[Room, int], dict[Room, int]]
    seed: int
    name: str
    state: State
    place: int = 0
    turn: int = 0
    said: str = "you start"


@register("environment", "rooms")
class Rooms(KeepsState[Episode]):
    """Find the key, open the door and reach the goal. Rooms may be visited many times.

    All mazes have the same plan: `library` is always east of `hall`. The passages between neighbors, the start, the key
    and the goal differ from maze to maze. An observation tells the room, its exits, the rooms of the key and of the
    goal, and the result of the last action. So a policy can play that sees only the latest observation, and what it
    learns in one maze helps in the next.

    Args:
        rooms: rooms of the house, 3–25. Higher: longer ways, more dead ends. Usual: 12.
        max_turns: turns until the episode is cut off. If the house is large enough, the shortest solution takes 40–75 %
            of them: 6–11 of 15. Higher: longer mazes, too. Usual: 15.
        mazes: 0: a new maze for every seed. k > 0: all seeds of all splits share k mazes, for comparisons on a small
            set.
        show_actions: True: the text ends with the possible actions.
        prefix: steps of a porch before the house, the same in all episodes. One action leads on. Usual: 0.
        corridor: steps of a dark corridor before the house. Every readable action leads on, so none deserves credit.
            Usual: 0. Turns for porch and corridor are added to `max_turns`.
        reward: "goal": 1 for the goal. "milestones": 1 for the goal, the key and the open door each; `maximum` of a
            step is then 3.

    Reward: 1 for reaching the goal, else 0, and milestones if chosen. The difficulty of a task is the length of a
    shortest solution. An action that is impossible or cannot be read changes nothing but takes a turn, and has
    `executable` 0. `progress` of a step is 1 once the key is taken and 2 once the door is open. `process` is 1 if the
    step belongs to a shortest solution, else 0. An action is given as text or as an index into `actions`. `vector` is
    one-hot: the room, the rooms of the key and of the goal, whether the way in each direction is open or locked, where
    the key is, and the place on the approach.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset(
        {"state_key", "outcome", "progress", "executable", "process", "maximum"}
    )  # columns of a table of its episodes
    actions: tuple[str, ...] = ACTIONS
    action_count: int = len(ACTIONS)

    def __init__(
        self,
        *,
        rooms: Annotated[int, pydantic.Field(ge=3, le=len(NAMES))] = 12,
        max_turns: PositiveInt = 15,
        mazes: Count = 0,
        show_actions: bool = False,
        prefix: Count = 0,
        corridor: Count = 0,
        reward: Literal["goal", "milestones"] = "goal",
    ) -> None:
        before = {name: steps for name, steps in (("prefix", prefix), ("corridor", corridor)) if steps}
        self._params = {"rooms": rooms, "max_turns": max_turns, "mazes": mazes, **before}
        self._approach = Approach(prefix=prefix, corridor=corridor)
        self._max_turns, self._show_actions = max_turns + self._approach.length, show_actions
        self._milestones = reward == "milestones"
        if self.provides is not None and not self._milestones:
            self.provides = self.provides - {"maximum"}
        self.vector_size = 3 * rooms + 2 * len(DIRECTIONS) + len(Key) + self._approach.length

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You are in a house of rooms. Every message names the room, its exits, the room of the key and the "
            "goal. Take the key, open the locked door beside the goal, and go to the goal. The library always "
            "lies east of the hall, and so on: all houses have the same plan, with other passages.",
            {
                "go north, go east, go south, go west": "walk through an exit",
                "take key": "when the key is here",
                "open door": "when you have the key and stand beside the goal",
            },
            example="go east",
            ending=f"The episode succeeds when you reach the goal.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` mazes. Splits share no seed."""
        return seeded_tasks("rooms", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The maze with start, key and goal, and the approach before it."""
        maze, _ = self._build({**self._params, **task.params}, task.seed)
        return as_json((maze, self._approach))

    def difficulty(self, task: Task) -> float:
        """The number of turns of a shortest solution, approach included."""
        return float(self._build({**self._params, **task.params}, task.seed)[0].length + self._approach.length)

    def _build(self, world: Mapping[str, Any], seed: int) -> tuple[Maze, int]:
        """The maze of a seed, and its number."""
        mazes, turns = world["mazes"], world["max_turns"]
        number = seed // 2 % mazes if mazes else seed  # the last bit of a seed tells its split
        return build(world["rooms"], round(0.4 * turns), int(0.75 * turns), number), number

    def reset(self, task: Task) -> StepResult:
        maze, number = self._build({**self._params, **task.params}, task.seed)
        start = State(room=maze.start, key=Key.LYING)
        self.state = Episode(maze=maze, ways=maze.ways(), seed=task.seed, name=str(number), state=start)
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        action = read(actions[AGENT].value, ACTIONS)
        after, possible, good = self._move(before, action)
        self.state = after = replace(after, turn=before.turn + 1)
        won = after.state.room == after.maze.goal
        cut = not won and after.turn >= self._max_turns
        key = after.state.key
        told = {"progress": float(key), "executable": float(possible), "process": float(good)}
        if self._milestones:
            told["maximum"] = float(len(Key))
        return single(
            AGENT,
            None if won else self._observe(after),
            reward=float(won + (key - before.state.key if self._milestones else 0)),
            over=won,
            cut=cut,
            act=told,
            readable=action is not None,
            info={"success": won} if won or cut else None,
        )

    def _move(self, now: Episode, action: str | None) -> tuple[Episode, bool, bool]:
        """The episode after an action, whether that was possible, and whether it belongs to a shortest solution."""
        maze, before = now.maze, now.state
        if now.place < self._approach.length:
            onward = self._approach.leads_on(now.place, action)
            said = "you went on" if onward else "nothing happens" if action else "not understood"
            return replace(now, place=now.place + onward, said=said), onward, onward
        after = None if action is None else maze.next(before, action)
        moved = replace(now, state=after or before, said=_result(maze, before, action, after))
        return moved, after is not None, maze.left(moved.state, now.ways) < maze.left(before, now.ways)

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The first action of a shortest solution."""
        now = self.state
        if now.place < self._approach.length:
            return choice(self._approach.choose(now.place, ACTIONS, now.seed), ACTIONS)
        return choice(solve(now.maze, now.state)[0], ACTIONS)

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, now: Episode) -> Observation:
        approach, maze, state = self._approach, now.maze, now.state
        house = _vector(maze, state)
        if now.place < approach.length:
            legal, text = approach.legal(now.place, ACTIONS), approach.describe(now.place)
            house, where = np.zeros_like(house), f"outside {now.place}"
        else:
            legal, text, where = maze.legal(state), _describe(maze, state), NAMES[state.room]
        outside = np.arange(approach.length) == now.place
        return Observation(
            text=f"{now.said}. {text}" + (f" actions: {', '.join(legal)}." if self._show_actions else ""),
            vector=np.concatenate([house, outside.astype(np.float32)]),
            legal=legal,
            state_key=f"{now.name}/{where}/{state.key.name.lower()}",
        )


def read(value: Any, actions: tuple[str, ...]) -> str | None:
    """The action that a text or an index means, or None if it cannot be read. The text `wait` is an action, too."""
    return read_choice(value, (*actions, WAIT) if isinstance(value, str) else actions)


def _result(maze: Maze, before: State, action: str | None, after: State | None) -> str:
    if action is None:
        return "not understood"
    if action == WAIT:
        return "nothing happens"
    if action == "take key":
        return "key taken" if after else "no key here"
    if action == "open door":
        return "door opened" if after else "cannot open"
    direction = action.removeprefix("go ")
    if after:
        return f"you went {direction}"
    return f"{direction} is locked" if direction in maze.exits[before.room] else f"no way {direction}"


def _describe(maze: Maze, state: State) -> str:
    """The text of a state, such as `hall. exits north west, locked east. key in cellar. goal vault.`"""
    ways = maze.exits[state.room]
    free = [direction for direction, beyond in ways.items() if not maze.locked(state, beyond)]
    shut = [direction for direction, beyond in ways.items() if maze.locked(state, beyond)]
    exits = f"exits {' '.join(free)}" + (f", locked {shut[0]}" if shut else "")
    place = f"in {NAMES[maze.key]}" if state.room != maze.key else "here"
    key = {Key.LYING: f"key {place}", Key.CARRIED: "you carry key", Key.USED: "door is open"}[state.key]
    return f"{NAMES[state.room]}. {exits}. {key}. goal {NAMES[maze.goal]}."


def _vector(maze: Maze, state: State) -> np.ndarray:
    rooms = len(maze.exits)
    found = np.zeros(3 * rooms + 2 * len(DIRECTIONS) + len(Key), np.float32)
    found[[state.room, rooms + maze.key, 2 * rooms + maze.goal]] = 1
    for place, direction in enumerate(DIRECTIONS):
        beyond = maze.exits[state.room].get(direction)
        if beyond is not None:
            found[3 * rooms + 2 * place + maze.locked(state, beyond)] = 1
    found[-len(Key) + state.key] = 1
    return found
