"""The household as an environment: tasks, observations, rewards and the experts.

Knows turns and rewards. Knows nothing of how houses are made, what commands do or how texts are worded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.household.house import GOALS, GoalName, House, State, build, stage, stages
from palaestra.envs.worlds.household.plan import search_then_plan, shortest
from palaestra.envs.worlds.household.rules import Command, act
from palaestra.envs.worlds.household.texts import View, Wording
from palaestra.envs.worlds.household.words import VocabularyName, vocabulary
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
APPLIANCES = 3  # of every kitchen
NEW_STAGE, USELESS, SUCCESS = 1.0, -0.5, 3.0  # of the dense reward
Range = tuple[PositiveInt, PositiveInt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What stays the same in an episode."""

    house: House
    wording: Wording
    seed: int
    slip: float

    def slips(self, turn: int) -> bool:
        """Whether the hands fail in this turn."""
        return self.slip > 0 and derive(self.seed, "slip", turn) / 2**63 < self.slip


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """How far one episode is. `way` is a shortest way to the goal from here."""

    scene: Scene
    state: State
    way: tuple[Command, ...]


@register("environment", "household", source="modeled on ALFWorld, arXiv 2010.03768")
class Household(KeepsState[Episode]):
    """Find things in a house, clean, heat or cool them, and bring them where they are wanted, by text commands.

    `go to drawer 2` (a place of this room, or another room), `open drawer 2`, `close drawer 2`, `take mug 1 from
    drawer 2`, `put mug 1 in shelf 1`, `clean mug 1 with sink 1`, `heat mug 1 with microwave 1`, `cool mug 1 with fridge
    1`, `use lamp`, `look`, `inventory`, `examine mug 1`. One thing can be carried. What is not possible, or cannot be
    read, comes back as `nothing happens.`

    Reward: 1 at the goal, else 0; or dense, as the option says.

    Args:
        rooms: 1–3: kitchen, bedroom, office. Higher: longer ways. Usual: 2.
        places: fewest and most receptacles, sink, microwave and fridge among them. Higher: longer search. Usual: 6–15.
        things: fewest and most objects. Higher: longer texts. Usual: 4–10.
        goals: kinds of goals, mixed evenly: "put" a mug somewhere; a clean, hot or cool one ("clean", "heat", "cool");
            "two" of them; "look" at one under the lamp.
        view: "full": the text tells what is where. "remembered": only of places that were looked into, whenever that
            was. "here": only of the place where the agent is, so that a context must remember the rest.
        reward: "sparse": 1 at the goal, else 0. "dense": +1 for each stage of the goal reached for the first time,
            −0.5 for an act that does nothing or cannot be read, +3 at the goal.
        idle: `look`, `inventory` and `examine` exist; they change nothing and cost a turn.
        vocabulary: "plain", "casual" and "formal" have other words for the same commands, places and things; "mixed"
            draws each from one of the three, by the task's seed. To hold one out, train on the others.
        expert: "sighted" sees everything and takes a shortest way; "searching" knows what was seen, and looks for what
            it does not know.
        slip: probability that an act of the hands (all but going and looking) does nothing.
        max_turns: turns until the episode is cut off. "sighted" needs up to 16 or so, "searching" 35. Usual: 50.

    A step's `info` tells `process`, 1 if the shortest way to the goal got shorter, `executable`, 0 for an act that did
    nothing, `stage`, how many sub-goals are reached now, and `subgoal`, the next one: take, clean, heat, cool, put or
    look.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "process", "executable", "stage"})

    def __init__(
        self,
        *,
        rooms: Annotated[int, pydantic.Field(ge=1, le=3)] = 2,
        places: Range = (6, 15),
        things: Range = (4, 10),
        goals: tuple[GoalName, ...] = GOALS,
        view: View = "remembered",
        reward: Literal["sparse", "dense"] = "sparse",
        idle: bool = True,
        vocabulary: VocabularyName = "plain",
        expert: Literal["sighted", "searching"] = "sighted",
        slip: Fraction = 0.0,
        max_turns: PositiveInt = 50,
    ) -> None:
        _refuse_impossible(rooms, places, things, goals, slip)
        self._params: dict[str, Any] = {
            "rooms": rooms,
            "places": list(places),
            "things": list(things),
            "goals": list(goals),
            "slip": slip,
        }
        self._view, self._idle, self._vocabulary = view, idle, vocabulary
        self._dense, self._sighted, self._max_turns = reward == "dense", expert == "sighted", max_turns

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` houses with goals; splits never share a seed."""
        return seeded_tasks("household", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The house, what is where, and the goal."""
        return as_json(_house_of({**self._params, **task.params}, task.seed))

    def difficulty(self, task: Task) -> float:
        """Acts of a shortest way."""
        house = _house_of({**self._params, **task.params}, task.seed)
        return float(len(shortest(house, self._first(house))))

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        house = _house_of(world, task.seed)
        words = task.seed if self._vocabulary == "mixed" else 0
        wording = _worded(house, self._vocabulary, words, self._view, self._idle)
        scene, first = Scene(house=house, wording=wording, seed=task.seed, slip=world["slip"]), self._first(house)
        self.state = Episode(scene=scene, state=first, way=tuple(shortest(house, first)))
        return single(AGENT, self._observe(scene, first), info={"success": False})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        scene, before = self.state.scene, self.state.state
        text = actions[AGENT].value
        command = scene.wording.read(text) if isinstance(text, str) else None
        after = act(scene.house, before, command, slips=scene.slips(before.turn))
        reached = stage(scene.house, after)
        after = replace(after, best=max(before.best, reached))
        left, way = len(self.state.way), tuple(shortest(scene.house, after))
        self.state = Episode(scene=scene, state=after, way=way)
        won = reached == len(stages(scene.house.goal))
        reward = float(won)
        if self._dense:
            reward = NEW_STAGE * (after.best - before.best) + USELESS * after.failed + SUCCESS * won
        return single(
            AGENT,
            self._observe(scene, after),
            reward=reward,
            over=won,
            cut=after.turn >= self._max_turns,
            act={
                "process": float(len(way) < left),
                "executable": float(not after.failed),
                "stage": float(reached),
                "subgoal": "" if won else stages(scene.house.goal)[reached],
            },
            readable=command is not None,
            info={"success": won},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next command of a shortest way, which knows where everything is; or of a search, which does not."""
        scene = self.state.scene
        command = self.state.way[0] if self._sighted else search_then_plan(scene.house, self.state.state)
        return Action(text=scene.wording.write(command))

    # ---- playing ------------------------------------------------------------------------------------------
    def _first(self, house: House) -> State:
        """The state before anything was done."""
        whole = self._view == "full"
        return State(
            room=0,
            where=house.start,
            entered=frozenset(range(len(house.rooms)) if whole else {0}),
            seen=frozenset(range(len(house.places)) if whole else ()),
        )

    def _observe(self, scene: Scene, state: State) -> Observation:
        sets = (state.open, state.entered, state.seen)
        known = "/".join(" ".join(map(str, sorted(one))) for one in sets)
        marks = " ".join(f"{thing}{mark}" for thing, mark in sorted(state.marks))
        where = " ".join(map(str, state.where))
        return Observation(
            text=scene.wording.show(state),
            legal=scene.wording.legal(state),
            state_key=f"{scene.seed}/{state.room} {state.at}/{where}/{marks}/{known}",
        )


@lru_cache(maxsize=64)  # a group plays one task several times
def _worded(house: House, name: VocabularyName, seed: int, view: View, idle: bool) -> Wording:
    return Wording(house, vocabulary(name, seed), view=view, idle=idle)


def _house_of(world: Mapping[str, Any], seed: int) -> House:
    return build(world["rooms"], tuple(world["places"]), tuple(world["things"]), tuple(world["goals"]), seed)


def _refuse_impossible(
    rooms: int, places: tuple[int, int], things: tuple[int, int], goals: tuple[GoalName, ...], slip: float
) -> None:
    refuse = Refusals("environment: household")
    refuse.when_reversed(places=places, things=things)
    refuse.when(
        places[0] < APPLIANCES + rooms,
        f"{places[0]} places are too few for three appliances and one more in each of {rooms} rooms.",
        f"Begin `places` with {APPLIANCES + rooms} or more.",
    )
    refuse.when_empty(GOALS, goals=goals)
    refuse.when(
        "two" in goals and things[0] < 2,
        f'{things[0]} things are too few for the goal "two".',
        "Begin `things` with 2 or more, or leave the goal out.",
    )
    refuse.when_certain("nothing could ever be done", slip=slip)
