"""The environment `household`: its tasks, observations, rewards and experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.household.house import GOALS, GoalName, House, State, build, stage, stages
from palaestra.envs.worlds.household.plan import search_then_plan, shortest
from palaestra.envs.worlds.household.requests import HowAsked, Speech, Wordings
from palaestra.envs.worlds.household.rules import Command, act
from palaestra.envs.worlds.household.texts import Style, View, Wording
from palaestra.envs.worlds.household.words import NAMES, VocabularyName, vocabulary
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
APPLIANCES = 3  # in every kitchen
NEW_STAGE, USELESS, SUCCESS = 1.0, -0.5, 3.0  # terms of the dense reward
Range = tuple[PositiveInt, PositiveInt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What stays the same in an episode."""

    house: House
    wording: Wording
    seed: int
    slip: float

    def slips(self, turn: int) -> bool:
        """Whether a command that uses the hands fails in this turn."""
        return self.slip > 0 and derive(self.seed, "slip", turn) / 2**63 < self.slip


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The state of one episode. `way` is a shortest list of commands from here to the goal."""

    scene: Scene
    state: State
    way: tuple[Command, ...]


@register(
    "environment",
    "household",
    ignores_if={"request=names": ("wordings",)},
    source="modeled on ALFWorld, arXiv 2010.03768",
)
class Household(KeepsState[Episode]):
    """Find things in a house, clean, heat or cool them, and bring them to a place, by text commands.

    The commands are `go to drawer 2` (a place in this room, or another room), `open drawer 2`, `close drawer 2`,
    `take mug 1 from drawer 2`, `put mug 1 in shelf 1`, `clean mug 1 with sink 1`, `heat mug 1 with microwave 1`, `cool
    mug 1 with fridge 1`, `use lamp`, `look`, `inventory` and `examine mug 1`. The agent can carry one thing at a time.
    The answer to a command that is impossible or cannot be read is `nothing happens.`

    Reward: 1 at the goal, else 0. The option `reward` can make it dense.

    Args:
        rooms: number of rooms, 1–3: the kitchen, then the bedroom, then the office. Higher: longer ways. Usual: 2.
        places: fewest and most receptacles, with sink, microwave and fridge. Higher: longer search. Usual: 6–15.
        things: fewest and most objects. Higher: longer texts. Usual: 4–10.
        goals: kinds of goals, mixed evenly. "put": bring a thing, such as a mug, to a place. "clean", "heat" or "cool":
            bring it there clean, hot or cool. "two": bring two of a kind. "look": look at it under the lamp.
        view: whose contents the text shows. "full": those of all places. "remembered": those of places that the agent
            has looked into, at any time. "here": those of the place where it stands; its context must remember the
            others.
        brief: tell the task and list the places in the first observation only. Later ones tell the result of the last
            command, what lies where the agent stands, and what it carries. Needs a context that keeps earlier turns.
        show_commands: end each observation with the commands that are possible now.
        reward: "sparse": 1 at the goal, else 0. "dense": +1 for each stage of the goal reached for the first time,
            −0.5 for an act that does nothing or cannot be read, +3 at the goal.
        idle: whether the commands `look`, `inventory` and `examine` exist. They change nothing and cost a turn.
        vocabulary: the words for commands, places and things: "plain", "casual" or "formal". "mixed" draws each word
            from one of the three, by the task's seed. To hold one vocabulary out, train on the others.
        request: "names" puts the task in the words of the house. "described" puts it in everyday English, by what
            things are for, and also tells in varied words what happens. Commands keep the words of the house, so the
            agent must understand what is meant. It is meant for pretrained models.
        wordings: "held_out": the split "train" has half of all descriptions and sentences, and the others have the
            other half. "shared": all splits have all of them. Only with `request: described`.
        expert: "sighted" knows the whole house and takes a shortest way. "searching" uses what the agent has seen, and
            searches for the rest.
        slip: probability that a command such as `take` or `open` does nothing. Going and looking never fail.
        max_turns: turns until the episode is cut off. "sighted" needs up to about 16, "searching" up to about 35.
            Usual: 50.

    A step's `info` has `process` (1 if the shortest way to the goal got shorter), `executable` (0 for an act that did
    nothing), `stage` (how many sub-goals are reached now) and `subgoal` (the next one: take, clean, heat, cool, put or
    look; empty at the goal).
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "process", "executable", "stage"})

    def __init__(
        self,
        *,
        rooms: Annotated[int, pydantic.Field(ge=1, le=3)] = 2,
        places: Range = (6, 15),
        things: Range = (4, 10),
        goals: tuple[GoalName, ...] = GOALS,
        view: View = "remembered",
        brief: bool = False,
        show_commands: bool = False,
        reward: Literal["sparse", "dense"] = "sparse",
        idle: bool = True,
        vocabulary: VocabularyName = "plain",
        request: HowAsked = "names",
        wordings: Wordings = "shared",
        expert: Literal["sighted", "searching"] = "sighted",
        slip: Fraction = 0.0,
        max_turns: PositiveInt = 50,
    ) -> None:
        _refuse_impossible(rooms, places, things, goals, slip)
        Refusals("environment: household").when(
            request == "described" and vocabulary != "plain",
            f"a described request means things by their plain names, and `vocabulary: {vocabulary}` gives them others.",
            "Leave `vocabulary` out, or set `request: names`.",
        )
        self._params: dict[str, Any] = {
            "rooms": rooms,
            "places": list(places),
            "things": list(things),
            "goals": list(goals),
            "slip": slip,
        }
        self._style = Style(view=view, idle=idle, brief=brief, commands=show_commands)
        self._vocabulary = vocabulary
        self._described, self._wordings = request == "described", wordings
        self._dense, self._sighted, self._max_turns = reward == "dense", expert == "sighted", max_turns

    def instruction(self, agent: str) -> str:
        """The rules of the house and its commands. The vocabulary "mixed" draws the words of each task, so that all
        three ways to write each command are told."""
        mixed = self._vocabulary == "mixed"
        kinds = [vocabulary(name, 0) for name in (NAMES if mixed else (self._vocabulary,))]

        def say(verb: str, thing: str = "", place: str = "") -> str:
            """The command in each vocabulary. `place` is a word of code, such as "sink", or stands for itself."""
            return " or ".join(one.command(verb, thing, one.words.get(place, place)) for one in kinds)

        commands = {
            say("go", place="PLACE"): "go to a place in this room, or to another room",
            say("open", place="PLACE"): "open a closed place",
            say("close", place="PLACE"): "",
            say("take", "THING", "PLACE"): "pick a thing up; you can carry one thing at a time",
            say("put", "THING", "PLACE"): "lay down what you carry",
            say("clean", "THING", "sink"): "",
            say("heat", "THING", "microwave"): "",
            say("cool", "THING", "fridge"): "",
            say("use", place="lamp"): "switch it on, to look at what you carry",
        }
        if self._style.idle:
            commands |= {say("look"): "", say("carried"): "", say("examine", "THING"): ""}
        fridge = f"{kinds[0].words['fridge']} 1"
        words = " Every house has its own words for commands and things: use those that work." * mixed
        refusal = "does nothing." if self._described else "has the answer `nothing happens.`"
        named = "the first" if self._style.brief else "every"
        listed = " Each message ends with the commands that are possible." * self._style.commands
        return write_manual(
            f"You are in a house and do the task that {named} message names. Things and places have a number, as in "
            f"{fridge}."
            " You can only use the place where you stand, so go there first. A question mark stands for what you have "
            f"not seen yet, and a closed place must be opened first.{words}{listed}",
            {} if listed else commands,
            example="" if mixed else say("go", place=fridge),
            ending=f"A command that is impossible {refusal} The episode succeeds when the task is "
            f"done.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` houses with goals. Splits never share a seed."""
        return seeded_tasks("household", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The house, the place of each thing, and the goal."""
        return as_json(_house_of({**self._params, **task.params}, task.seed))

    def difficulty(self, task: Task) -> float:
        """Number of commands of a shortest way to the goal."""
        house = _house_of({**self._params, **task.params}, task.seed)
        return float(len(shortest(house, self._first(house))))

    def reset(self, task: Task) -> StepResult:
        world = {**self._params, **task.params}
        house = _house_of(world, task.seed)
        words = task.seed if self._vocabulary == "mixed" else 0
        half = None if self._wordings == "shared" else task.seed % 2
        speech = (task.seed, half) if self._described else None
        wording = _worded(house, self._vocabulary, words, self._style, speech)
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
        """The next command of the expert that the option `expert` names."""
        scene = self.state.scene
        command = self.state.way[0] if self._sighted else search_then_plan(scene.house, self.state.state)
        return Action(text=scene.wording.write(command))

    # ---- playing ------------------------------------------------------------------------------------------
    def _first(self, house: House) -> State:
        """The state before the first act."""
        whole = self._style.view == "full"
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
def _worded(
    house: House, name: VocabularyName, seed: int, style: Style, speech: tuple[int, int | None] | None
) -> Wording:
    words = None if speech is None else Speech(*speech)
    return Wording(house, vocabulary(name, seed), style, words)


def _house_of(world: Mapping[str, Any], seed: int) -> House:
    return build(world["rooms"], tuple(world["places"]), tuple(world["things"]), tuple(world["goals"]), seed)


def _refuse_impossible(
    rooms: int, places: tuple[int, int], things: tuple[int, int], goals: tuple[GoalName, ...], slip: float
) -> None:
    refuse = Refusals("environment: household")
    refuse.when_reversed(places=places, things=things)
    refuse.when(
        places[0] < APPLIANCES + rooms,
        f"`places` allows {places[0]} places. A house with `rooms: {rooms}` needs {APPLIANCES + rooms}: three "
        "appliances, and one more place in each room.",
        f"Set the first number of `places` to {APPLIANCES + rooms} or more.",
    )
    refuse.when_empty(GOALS, goals=goals)
    refuse.when(
        "two" in goals and things[0] < 2,
        f'`things` allows a house with {things[0]} thing, and the goal "two" needs 2 things.',
        'Set the first number of `things` to 2 or more, or remove "two" from `goals`.',
    )
    refuse.when_certain("no goal could ever be reached", slip=slip)
