"""BabyAI (arXiv 1810.08272): levels of a grid world with an instruction, as short texts and as vectors.

The levels come from the package MiniGrid. The expert is in `expert.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import minigrid.envs.babyai.core.roomgrid_level as generator
import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.adapters.babyai.expert import Expert
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.choices import read_index
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.errors import UnknownName, nearest
from palaestra.registry import PositiveInt, register

AGENT = "player"
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")  # in the package's order
DONE = ACTIONS.index("done")  # an action that changes nothing
VIEW = 7  # cells on each side of the view; the agent stands in the middle of the nearest row
WORDS = (
    *("go", "pick", "open", "put", "next", "then", "after", "and", "the", "a"),
    *("red", "green", "blue", "purple", "yellow", "grey"),
    *("ball", "key", "box", "door", "object", "front", "behind", "left", "right"),
)  # words of missions that tell them apart
HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # steps (x, y) in each direction, in the package's order
OUTSIDE = Wall()
CELL = len(IDX_TO_OBJECT) + len(IDX_TO_COLOR) + len(STATE_TO_IDX)

# The package prints a line for each level that it draws and rejects. That would fill the user's standard output.
generator.print = lambda *words: None  # type: ignore[attr-defined]


@cache
def levels() -> dict[str, str]:
    """All levels, each with the name of its newest version in Gymnasium's registry."""
    found = {}
    for identifier in sorted(gymnasium.registry):
        named = re.fullmatch(r"BabyAI-(\w+)-v\d+", identifier)
        if named:
            found[named[1]] = identifier
    return found


def make_level(level: str) -> Any:
    """The package's environment for a level, without wrappers.

    Raises: UnknownName, with the most similar levels.
    """
    if level not in levels():
        raise UnknownName(
            where=f"environment: babyai, level: {level}",
            what=f"BabyAI has no level `{level}`.",
            options=nearest(level, levels()),
            remedy="palaestra.envs.adapters.babyai.world.levels() lists all levels.",
        )
    made: Any = gymnasium.make(levels()[level], disable_env_checker=True).unwrapped
    made.gen_obs = dict  # an empty observation: the package's own would be computed in every step, and nobody reads it
    return made


@register("environment", "babyai", source="arXiv 1810.08272")
class BabyAI(KeepsState[Any]):
    """Do what the mission says in a grid of rooms: go to things, pick them up, open doors, or put things together.

    Args:
        level: a level of BabyAI, such as GoToObj, GoToLocal, PickupLoc, PutNextLocal, GoTo, BossLevel.
        max_turns: turns until the episode is cut off. None: the level's own limit, several times the turns needed.
            Higher: aimless play succeeds more often.
        shaped: True: the reward of a success is 1 − 0.9 · turns / max_turns. False: it is 1. `info` tells `success`.

    Observation: `text` has the mission, the things seen in the 7×7 cells ahead (nearest first), the distances to the
    walls ahead, left and right that are seen, and what is carried:
    `go to the red ball. red ball 2 forward 1 left, blue key 3 forward. wall 4 forward 2 left. carry nothing.`
    `vector` (float32) has one-hot kind, color and state of each cell of the view, the direction, and the words of the
    mission.
    An action is given as text or as an index into `actions`. One that cannot be read changes nothing but takes a turn.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns of a table of its episodes
    actions: tuple[str, ...] = ACTIONS
    action_count: int = len(ACTIONS)
    vector_size: int = VIEW * VIEW * CELL + 4 + len(WORDS)

    def __init__(self, *, level: str = "GoToLocal", max_turns: PositiveInt | None = None, shaped: bool = False) -> None:
        note_version("babyai")
        self._level, self._max_turns, self._shaped = level, max_turns, shaped
        self._levels = {level: make_level(level)}
        self._shown: dict[str, Any] = {}  # levels that `content` looks at and nobody plays
        self._expert = Expert()

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You are in a grid of rooms and do the mission that begins every message. You see the things ahead "
            "of you: `2 forward 1 left` is two steps ahead and one to the left. You can only pick up or use what "
            "is directly ahead of you.",
            {
                "turn left": "",
                "turn right": "",
                "go forward": "",
                "pick up": "pick up what is directly ahead; you can carry one thing",
                "drop": "put down what you carry",
                "toggle": "open the door or the box ahead",
                "done": "do nothing",
            },
            example="go forward",
            ending=f"The episode succeeds when the mission is done.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` layouts of the level. Splits share no seed, but small levels have few layouts, which recur."""
        return seeded_tasks("babyai", {"level": self._level}, split, n, seed)

    def content(self, task: Task) -> Any:
        """The mission, the grid, what lies in boxes, and the agent's position and direction."""
        name = task.params.get("level", self._level)
        if name not in self._shown:
            self._shown[name] = make_level(name)
        level = self._shown[name]
        level.reset(seed=task.seed)
        inside = [
            [place, cell.contains.type, cell.contains.color]
            for place, cell in enumerate(level.grid.grid)
            if getattr(cell, "contains", None) is not None
        ]
        pose = [int(number) for number in (*level.agent_pos, level.agent_dir)]
        return [level.mission, level.grid.encode().tolist(), inside, pose]

    def reset(self, task: Task) -> StepResult:
        level = task.params.get("level", self._level)
        if level not in self._levels:
            self._levels[level] = make_level(level)
        self.state = grid = self._levels[level]
        grid.reset(seed=task.seed)
        grid.max_steps = self._max_turns or grid.max_steps
        self._expert.forget()
        return single(AGENT, self._observe())

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        grid = self.state
        action = read_index(actions[AGENT].value, ACTIONS)
        taken = grid.actions(DONE if action is None else action)
        _, reward, over, cut, _ = grid.step(taken)
        self._expert.note(taken, over=over)
        cut = cut and not over
        won = over and reward > 0
        return single(
            AGENT,
            None if over else self._observe(unread=action is None),
            reward=float(reward) if self._shaped else float(won),
            over=over,
            cut=cut,
            readable=action is not None,
            info={"success": bool(won)} if over or cut else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The advice of the package's bot, which knows only the cells that it has seen."""
        return Action(text=ACTIONS[self._expert.advise(self.state)])

    def restore(self, state: Any) -> None:
        """Continue from `state`. The expert makes a new plan."""
        super().restore(state)
        self._expert.forget()

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, *, unread: bool = False) -> Observation:
        grid = self.state
        view, seen = look(grid)
        text = describe(grid.mission, view, seen, grid.carrying)
        return Observation(
            text=f"not understood. {text}" if unread else text,
            vector=vector(grid.mission, view.encode(seen), grid.agent_dir),
            legal=ACTIONS,
            state_key=state_key(grid),
        )


# ---- views ------------------------------------------------------------------------------------------------
def look(level: Any) -> tuple[Any, np.ndarray]:
    """The 7×7 cells ahead as a grid in which ahead is up, and which of them are seen: bool (7, 7).

    The result equals that of the package's `gen_obs_grid`, which takes twice as long.
    """
    width, height, cells = level.grid.width, level.grid.height, level.grid.grid
    (x, y), (forward_x, forward_y) = level.agent_pos, HEADINGS[level.agent_dir]
    x, y = int(x) + forward_x * (VIEW - 1), int(y) + forward_y * (VIEW - 1)
    right_x, right_y = -forward_y, forward_x
    view = Grid(VIEW, VIEW)
    place = 0
    for row in range(VIEW):
        for side in range(-(VIEW // 2), VIEW // 2 + 1):
            i, j = x - forward_x * row + right_x * side, y - forward_y * row + right_y * side
            view.grid[place] = cells[j * width + i] if 0 <= i < width and 0 <= j < height else OUTSIDE
            place += 1
    seen = view.process_vis((VIEW // 2, VIEW - 1))
    view.set(VIEW // 2, VIEW - 1, level.carrying)
    return view, seen


# ---- text -------------------------------------------------------------------------------------------------
def describe(mission: str, view: Any, seen: np.ndarray, carrying: Any) -> str:
    """The mission, the things seen, the walls and what is carried, as one line."""
    things = []
    for ahead in range(VIEW):
        for side in range(-(VIEW // 2), VIEW // 2 + 1):
            cell = view.get(VIEW // 2 + side, VIEW - 1 - ahead)
            if cell is not None and cell.type != "wall" and (ahead or side):
                things.append((ahead + abs(side), ahead, side, f"{_named(cell)} {_place(ahead, side)}"))
    listed = ", ".join(thing for *_, thing in sorted(things)) or "nothing"
    held = f"carry {_named(carrying)}" if carrying is not None else "carry nothing"
    return ". ".join([mission, listed, *_walls(view, seen), held]) + "."


def _named(cell: Any) -> str:
    if cell.type != "door":
        return f"{cell.color} {cell.type}"
    condition = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
    return f"{condition} {cell.color} door"


def _place(ahead: int, side: int) -> str:
    places = [f"{ahead} forward"] if ahead else []
    if side:
        places.append(f"{abs(side)} {'left' if side < 0 else 'right'}")
    return " ".join(places)


def _walls(view: Any, seen: np.ndarray) -> list[str]:
    """The distances to the walls ahead, left and right that are seen, as one sentence or none."""
    middle, nearest_row = VIEW // 2, VIEW - 1
    found = []
    for word, right, down in (("forward", 0, -1), ("left", -1, 0), ("right", 1, 0)):
        for distance in range(1, VIEW):
            x, y = middle + right * distance, nearest_row + down * distance
            if not (0 <= x < VIEW and y >= 0) or not seen[x, y]:
                break
            cell = view.get(x, y)
            if cell is not None and cell.type == "wall":
                found.append(f"{distance} {word}")
                break
    return [f"wall {' '.join(found)}"] if found else []


# ---- vectors and keys -------------------------------------------------------------------------------------
def vector(mission: str, cells: np.ndarray, direction: int) -> np.ndarray:
    """float32 (vector_size,): kind, color and state of each cell, direction and words of the mission, all one-hot.

    Args:
        cells: uint8 (7, 7, 3), kind, color and state of each cell of the view. Kind 0: not seen.
    """
    starts = np.array([0, len(IDX_TO_OBJECT), len(IDX_TO_OBJECT) + len(IDX_TO_COLOR)])
    places = (np.arange(VIEW * VIEW) * CELL)[:, None] + starts + cells.reshape(-1, 3)
    found = np.zeros(BabyAI.vector_size, np.float32)
    found[places] = 1
    found[VIEW * VIEW * CELL + direction] = 1
    found[-len(WORDS) :] = _words(mission)
    return found


@cache
def _words(mission: str) -> np.ndarray:
    said = set(re.findall(r"\w+", mission))
    return np.array([word in said for word in WORDS], np.float32)


def state_key(grid: Any) -> str:
    """A hash of the whole situation: things, agent, what it carries, mission and progress."""
    things = [
        (place, cell.type, cell.color, getattr(cell, "is_open", None), getattr(cell, "is_locked", None), cell.init_pos)
        for place, cell in enumerate(grid.grid.grid)
        if cell is not None and cell.type != "wall"
    ]
    held = grid.carrying and (grid.carrying.type, grid.carrying.color, grid.carrying.init_pos)
    pose = (int(grid.agent_pos[0]), int(grid.agent_pos[1]), int(grid.agent_dir))
    content = repr((grid.mission, things, held, pose, _progress(grid.instrs)))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _progress(instruction: Any) -> tuple[Any, ...]:
    parts = [getattr(instruction, name, None) for name in ("instr_a", "instr_b")]
    done = tuple(getattr(instruction, name, None) for name in ("a_done", "b_done"))
    return (*done, *(_progress(one) for one in parts if one is not None))
