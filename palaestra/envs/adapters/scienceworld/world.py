"""ScienceWorld (arXiv 2203.07540): elementary-school experiments in a simulated house, by text commands.

This file makes tasks, observations, rewards and the expert's commands. `server` runs the simulator.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Literal

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.scienceworld.server import (
    PLACE,
    World,
    give_back,
    golden_path,
    kinds,
    server,
    take_world,
    variations,
)
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import started
from palaestra.errors import UnknownName, nearest
from palaestra.registry import PositiveInt, register

AGENT = "player"
PARTS = {"train": "train", "eval": "dev"}  # split → the package's part; all other splits play "test"
LONGEST_COMMAND = 120  # characters
LOOK = "look around"  # the expert's command after the end of its path
UNKNOWN = "No known action matches that input."
Simplification = Literal[
    "easy", "teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction"
]


@register("environment", "scienceworld", source="arXiv 2203.07540", extra="envs", modules=("scienceworld",))
class ScienceWorld:
    """Solve a task of elementary science in a house of ten rooms, by text commands.

    Args:
        kinds: kinds of tasks, by ScienceWorld's names, such as find-plant, boil, lifespan-longest-lived; [all] is all
            30.
        simplifications: of the package; "easy" is all of them. []: none.
        legal: the most valid commands that an observation lists. If more are valid, it lists a random part of them.
            With an expert it also lists all commands of the expert's path at every step, so the list does not tell
            which of them comes next. 0: no list. Higher: slower steps.
        reward: "win": 1 for the full score, else 0. "score": the gain of the score, so that winning gives 1 in total.
        max_turns: commands until the episode is cut off. Usual: 30 for find-*, 100 for boil, grow-*, mendelian-*.
        expert: make the package's path of commands that solve a task. It takes 0.5 to 3 s, once for each task.

    The split "train" plays the package's train variations, "eval" its dev variations, every other split its test
    variations. It needs Java. One Java process serves all environments of a Python process; it starts in a second and
    runs until Python ends. A step takes 20 to 100 ms, most of it for the list of legal commands. An episode depends
    only on its task's seed and its commands.
    Observation: `text`: the task, the effect of the last command, the room, what is carried; around 150 words. `legal`;
    `state_key`, a hash of the task, the room, what is carried, the valid commands and the score; without `legal`
    there is none.
    Info: `score` in [0, 1]; `success` at the end; `invalid` for a command that is not understood.
    Ends: the task is completed, or it has failed, as after focusing on the wrong object.
    Expert: the commands of the package's path, in order. If the agent has left the path, the expert still gives the
    path's next command.
    Raises: UnknownName, for a kind; MissingExtra, if scienceworld or Java is not installed.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        kinds: tuple[str, ...] = ("find-plant",),
        simplifications: tuple[Simplification, ...] = ("easy",),
        legal: int = 100,
        reward: Literal["win", "score"] = "win",
        max_turns: PositiveInt = 50,
        expert: bool = True,
    ) -> None:
        note_version("scienceworld")
        server()
        self._kinds = _known(kinds)
        self._simpler = ",".join(simplifications)
        self._legal, self._reward, self._max_turns = legal, reward, max_turns
        self._with_expert = expert
        Refusals(PLACE).when(legal < 0, f"`legal` is {legal}, below 0.", "Give the most commands to list, or 0.")
        if not expert:
            self.abilities = without(self.abilities, "expert")
        self._world: World | None = None
        self._task: Task | None = None
        self._commands: list[str] = []
        self._path: tuple[str, ...] = ()
        self._walked, self._score, self._said = 0, 0.0, ""

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You do a task of elementary science in a house of ten rooms, by text commands. Every message names "
            "the task, the effect of the last command, and the room.",
            {
                "look around": "",
                "go to ROOM": "",
                "open THING, close THING": "",
                "pick up THING, put down THING": "",
                "move THING to PLACE": "",
                "focus on THING": "say that this is the thing of the task; focusing on a wrong thing fails",
                "use THING on THING": "",
                "activate THING, deactivate THING": "",
                "pour THING in THING, mix THING": "",
                "read THING": "",
                "wait": "let time pass",
                "inventory": "",
            },
            example="look around",
            ending=f"The episode succeeds with the full score.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` variations of the split, from all kinds. None repeats before all of them were given."""
        part = PARTS.get(split, "test")
        pool = [(kind, number) for kind in self._kinds for number in variations(kind)[part]]
        draw = random.Random(derive(seed, "scienceworld", split))
        chosen: list[tuple[str, int]] = []
        while len(chosen) < n:
            chosen += draw.sample(pool, len(pool))  # always the whole pool, so a longer list begins like a shorter one
        return [
            Task(
                env="scienceworld",
                params={"kind": kind, "variation": number, "simplifications": self._simpler},
                seed=derive(seed, "scienceworld", split, place),
                key=f"{kind}/{number}",
                split=split,
            )
            for place, (kind, number) in enumerate(chosen[:n])
        ]

    def content(self, task: Task) -> Any:
        """The kind of experiment, its variation and its simplifications."""
        kind, simpler = task.params.get("kind", self._kinds[0]), task.params.get("simplifications", self._simpler)
        return [kind, task.params.get("variation", 0), simpler]

    def reset(self, task: Task) -> StepResult:
        kind = task.params.get("kind", self._kinds[0])
        number = int(task.params.get("variation", 0))
        simpler = task.params.get("simplifications", self._simpler)
        self._world = self._world or take_world()
        self._world.start(kind, number, simpler, seed=task.seed)
        self._path = golden_path(kind, number, simpler, task.seed) if self._with_expert else ()
        self._task, self._commands, self._walked, self._score, self._said = task, [], 0, 0.0, ""
        return single(AGENT, self._observe(), info={"score": 0.0})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        world = self._playing()
        command = _command(actions[AGENT])
        self._commands.append(command)
        if self._walked < len(self._path) and command == self._path[self._walked].lower():
            self._walked += 1
        self._said = str(world.call("step", command)) if command else UNKNOWN
        points = float(world.call("getScore"))
        over = bool(world.call("getCompleted")) or points < 0
        score = max(points, 0.0)
        gained, self._score = score - self._score, score
        won = over and score >= 1.0
        cut = not over and len(self._commands) >= self._max_turns
        return single(
            AGENT,
            None if over else self._observe(),
            reward=float(won) if self._reward == "win" else gained,
            over=over,
            cut=cut,
            readable=self._said != UNKNOWN,
            info={"score": score} | ({"success": won} if over or cut else {}),
        )

    def close(self) -> None:
        if self._world is not None:
            give_back(self._world)
        self._world = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next command of the package's path."""
        self._playing()
        return Action(text=self._next())

    def snapshot(self) -> Any:
        """The task and all commands so far. `restore` plays them again."""
        self._playing()
        return self._task, tuple(self._commands)

    def restore(self, state: Any) -> None:
        task, commands = state
        self.reset(task)
        for command in commands:
            self.step({AGENT: Action(text=command)})

    # ---- observations -------------------------------------------------------------------------------------
    def _playing(self) -> World:
        return started(self._world, self)

    def _next(self) -> str:
        return self._path[self._walked].lower() if self._walked < len(self._path) else LOOK

    def _observe(self) -> Observation:
        world = self._playing()
        goal, room, carried = (_line(world.call(f"freeAction{what}")) for what in ("TaskDesc", "Look", "Inventory"))
        lines = [f"goal: {goal.removeprefix('task description: ')}", f"last: {_line(self._said)}" if self._said else ""]
        lines += [f"room: {room}", f"inventory: {carried.removeprefix('in your inventory, you see: ')}"]
        legal, key = None, None
        if self._legal:
            valid = sorted({text.lower() for text in world.texts("getValidActionObjectCombinations")})
            task = self._task.content_hash if self._task else ""
            content = "\n".join((task, room, carried, f"{self._score:.4f}", *valid))
            key = hashlib.sha256(content.encode()).hexdigest()[:16]
            legal = self._listed(valid, key)
        return Observation(text="\n".join(line for line in lines if line), legal=legal, state_key=key)

    def _listed(self, valid: list[str], key: str) -> list[str]:
        """At most `legal` of the valid commands, and all commands of the expert's path, in alphabetical order.

        The list depends only on the task and the situation, so equal state keys have equal lists. It does not tell how
        far the expert has come.
        """
        if len(valid) > self._legal:
            valid = random.Random(key).sample(valid, self._legal)
        return sorted({*valid, LOOK, *(command.lower() for command in self._path)} if self._with_expert else valid)


def _command(action: Action) -> str:
    """The typed command: the first line, in lower case, with single spaces."""
    lines = str(action.value or "").strip().lower().splitlines()
    return " ".join(lines[0].split())[:LONGEST_COMMAND] if lines else ""


def _line(text: Any) -> str:
    return " ".join(str(text).lower().split())


def _known(chosen: tuple[str, ...]) -> tuple[str, ...]:
    if chosen == ("all",):
        return kinds()
    Refusals(PLACE).when(not chosen, "`kinds` is empty.", "Name at least one kind, or all.")
    for kind in chosen:
        if kind not in kinds():
            raise UnknownName(
                where=f"{PLACE}, kinds",
                what=f"ScienceWorld has no kind of task called `{kind}`.",
                options=nearest(kind, kinds()),
                remedy="Name kinds of ScienceWorld, or all of them with `kinds: [all]`.",
            )
    return chosen
