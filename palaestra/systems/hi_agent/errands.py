"""The environment `errands`: a planner names the next place and a walker goes there, until all errands are done."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.choices import choice, read_index
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

PLANNER, WALKER = "planner", "walker"
PLACES = ("bakery", "bank", "church", "harbor", "market", "mill", "school", "tower")
MOVES = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
Cell = tuple[int, int]
Place = int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode. It is frozen, so a snapshot is the state itself.

    Attributes:
        cells: the cell of each place.
        errands: places to go to, in order; the first `done` of them are done.
        seed: of the task; it decides the judge's errors.
        here: the walker's cell.
        done: the number of errands done.
        goal: the place that the walker is to go to; None while the planner acts.
        walked: moves of this attempt.
        decisions: of the planner so far.
        trail: moves of all attempts, on which the judge's errors depend.
    """

    cells: tuple[Cell, ...]
    errands: tuple[Place, ...]
    seed: int
    here: Cell
    done: int = 0
    goal: Place | None = None
    walked: int = 0
    decisions: int = 0
    trail: str = ""

    @property
    def agent(self) -> str:
        """The agent that acts."""
        return PLANNER if self.goal is None else WALKER


@register("environment", "errands")
class Errands(KeepsState[State]):
    """Do errands in a town: `planner` says `go bank`, then `walker` makes moves until it is there or gives up.

    An errand is done when its place is reached as a goal while it is the next of the list; any other place costs a
    decision. So every decision is short and can be judged at once, and the whole list is long.

    Args:
        errands: length of the list. Higher: rarer success, by chance and by mistakes. Usual: 4.
        places: 2–8, the places that may be goals, each on its own cell. Higher: more wrong goals. Usual: 6.
        size: cells per side of the town. Higher: longer ways. Usual: 4.
        reach: most moves of an attempt. Usual: 2 · size − 2, the length of the longest way.
        spare: decisions beyond those needed. Higher: more mistakes are allowed. Usual: 1.
        judge_noise: probability that the judge says the opposite. Usual: 0.

    Reward: 1 to `planner` when the last errand is done, else 0. A walker's act that moves against the border, names a
    place or cannot be read costs a turn and changes nothing else. A planner's act that names no place costs a decision.

    The `info` of a planner's step describes its subgoal: `format`, whether it names a place; `executed`, whether the
    walker arrived; `judged`, whether the judge sees progress, which is an errand done. The walker's steps have
    `executed` at the end of an attempt. The last `info` has `done`, the number of errands done.

    `vector` has the role; for the planner the list, how many errands are done, and the decisions left; for the walker
    the goal's column and row relative to its cell, and the moves left.
    """

    agents: tuple[str, ...] = (PLANNER, WALKER)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "format", "executed", "judged"})

    def __init__(
        self,
        *,
        errands: PositiveInt = 4,
        places: Annotated[int, pydantic.Field(ge=2, le=len(PLACES))] = 6,
        size: Annotated[int, pydantic.Field(ge=3, le=8)] = 4,
        reach: PositiveInt = 6,
        spare: Annotated[int, pydantic.Field(ge=0)] = 1,
        judge_noise: Fraction = 0.0,
    ) -> None:
        Refusals("environment: errands").when(
            reach < 2 * size - 2,
            f"`reach: {reach}` is less than the longest way of a town of {size} × {size}: {2 * size - 2}.",
            f"Set `reach: {2 * size - 2}` or more, or a smaller `size`.",
        )
        self._params = {"errands": errands, "places": places, "size": size}
        self._errands, self._places, self._size, self._reach = errands, places, size, reach
        self._decisions, self._judge_noise = errands + spare, judge_noise
        self.actions = (*(f"go {name}" for name in PLACES[:places]), *MOVES)
        self.action_count = len(self.actions)
        self.vector_size = 2 + errands * places + errands + 1 + 2 * (2 * size - 1) + 1

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        if agent == PLANNER:
            return write_manual(
                "You plan the errands of a walker in a town. Every message has the list of errands in their order, how "
                "many of them are done, and how many decisions are left. Name the first place of the list that is "
                f"not done. The walker then goes there, or gives up after {self._reach} moves. An errand is done when "
                "the walker reaches the place that you named, and it is the next one of the list.",
                {"go PLACE": f"send the walker to a place: {', '.join(PLACES[: self._places])}"},
                example=f"go {PLACES[0]}",
                ending="Every answer costs a decision, also a wrong or an unreadable one. The episode succeeds when "
                "all errands are done, and fails when no decision is left.",
            )
        return write_manual(
            f"You walk in a town of {self._size} by {self._size} cells. Every message has the place where you shall "
            "go, how far away it is, such as `2 east 1 south`, and how many moves are left.",
            {", ".join(MOVES): "go one cell in this direction"},
            example="east",
            ending="An answer that leads out of the town, or that cannot be read, costs a move. Your way ends at the "
            "place, or when no move is left. The episode succeeds when all errands of a list are done.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` towns with lists; splits never share a seed."""
        return seeded_tasks("errands", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """Where one starts, where all places are, and the list."""
        return as_json((self._size, *self._drawn(task)))

    def _drawn(self, task: Task) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        draw, size = random.Random(task.seed), self._size
        cells = draw.sample([(x, y) for x in range(size) for y in range(size)], self._places + 1)
        errands = [draw.randrange(self._places)]
        while len(errands) < self._errands:  # the same place twice in a row would be done already
            errands.append(draw.choice([place for place in range(self._places) if place != errands[-1]]))
        return tuple(cells), tuple(errands)

    def reset(self, task: Task) -> StepResult:
        cells, errands = self._drawn(task)
        self.state = State(cells=cells[1:], errands=errands, seed=task.seed, here=cells[0])
        return several({PLANNER: self._observe(self.state)}, info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        agent = before.agent
        meant = read_index(actions[agent].value, self.actions)
        info = act_info(agent, {}, readable=meant is not None)
        if before.goal is None:
            goal = meant if meant is not None and meant < self._places else None
            info |= act_info(PLANNER, {"format": float(goal is not None), "executed": 0.0})
            state = replace(before, decisions=before.decisions + 1, goal=goal, walked=0)
        else:
            state = self._walk(before, meant)
        if state.goal is not None:
            arrived = state.here == state.cells[state.goal]
            if arrived or state.walked >= self._reach:
                info["executed"] = dict.fromkeys({PLANNER, agent}, float(arrived))
                due = state.errands[state.done]
                state = replace(state, done=state.done + (arrived and state.goal == due), goal=None)
        if state.goal is None:
            info["judged"] = {PLANNER: self._judge(state, progress=state.done > before.done)}
        self.state = state
        won = state.done == self._errands
        over = won or (state.goal is None and state.decisions >= self._decisions)
        info |= {"success": won, "done": state.done}
        return several(
            {} if over else {state.agent: self._observe(state)},
            rewards={PLANNER: 1.0} if won else {},
            over=self.agents if over else (),
            info=info,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next errand's place; a move that comes nearer to the goal."""
        state = self.state
        if state.goal is None:
            return choice(f"go {PLACES[state.errands[state.done]]}", self.actions)
        across, down = self._offset(state, state.goal)
        if abs(across) >= abs(down):
            return choice("east" if across > 0 else "west", self.actions)
        return choice("south" if down > 0 else "north", self.actions)

    # ---- playing ------------------------------------------------------------------------------------------
    def _walk(self, state: State, meant: int | None) -> State:
        here, trail = state.here, "?"
        if meant is not None and meant >= self._places:
            right, down = MOVES[self.actions[meant]]
            beyond = (here[0] + right, here[1] + down)
            here = beyond if all(0 <= place < self._size for place in beyond) else here
            trail = self.actions[meant][0]
        return replace(state, here=here, walked=state.walked + 1, trail=state.trail + trail)

    def _judge(self, state: State, *, progress: bool) -> float:
        """Whether an errand was done; with probability `judge_noise` the opposite."""
        draw = random.Random(derive(state.seed, "judge", state.decisions, state.here, state.trail))
        return float(progress != (draw.random() < self._judge_noise))

    def _offset(self, state: State, place: Place) -> Cell:
        return state.cells[place][0] - state.here[0], state.cells[place][1] - state.here[1]

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        text = self._describe(state)
        return Observation(
            text=text,
            vector=self._vector(state),
            legal=list(range(self._places)) if state.goal is None else list(range(self._places, self.action_count)),
            state_key=f"{state.seed}/{state.here}/{state.done}/{state.decisions}/{text}",
        )

    def _describe(self, state: State) -> str:
        """`errands: bank mill tower. done: 1. decisions left: 3.`, or `go bank. 2 east 1 south. moves left: 4.`"""
        if state.goal is None:
            listed = " ".join(PLACES[place] for place in state.errands)
            return f"errands: {listed}. done: {state.done}. decisions left: {self._decisions - state.decisions}."
        across, down = self._offset(state, state.goal)
        ways = ((across, "east" if across > 0 else "west"), (down, "south" if down > 0 else "north"))
        told = " ".join(f"{abs(far)} {way}" for far, way in ways if far)
        return f"go {PLACES[state.goal]}. {told or 'here'}. moves left: {self._reach - state.walked}."

    def _vector(self, state: State) -> np.ndarray:
        width = 2 * self._size - 1
        role, listed = np.zeros(2, np.float32), np.zeros((self._errands, self._places), np.float32)
        done, offset = np.zeros(self._errands + 1, np.float32), np.zeros((2, width), np.float32)
        role[state.goal is not None] = 1
        if state.goal is None:
            listed[range(self._errands), list(state.errands)] = 1
            done[state.done] = 1
            left = 1 - state.decisions / self._decisions
        else:
            for axis, far in enumerate(self._offset(state, state.goal)):
                offset[axis, self._size - 1 + far] = 1
            left = 1 - state.walked / self._reach
        return np.concatenate([role, listed.reshape(-1), done, offset.reshape(-1), [left]]).astype(np.float32)
