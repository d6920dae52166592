"""TextWorld (arXiv 1806.11532): generated text adventures with one command a turn.

This file makes tasks, observations, rewards and the expert's commands. `games` makes games, and `play` plays them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.textworld.files import File, Library, commands_of, library, load_file
from palaestra.envs.adapters.textworld.games import (
    WHERE,
    Challenge,
    Design,
    Mode,
    cache_folder,
    compiled,
    load,
    load_compiled,
    package,
)
from palaestra.envs.adapters.textworld.pddl import PddlPlayer
from palaestra.envs.adapters.textworld.play import CompiledPlayer, LogicPlayer, command_of
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import unstarted
from palaestra.errors import InvalidData
from palaestra.registry import PositiveInt, register
from palaestra.registry.options import Files

AGENT = "player"
NAME = "textworld"
Player = LogicPlayer | CompiledPlayer | PddlPlayer
PASSIVE = ("examine", "inventory", "look")  # verbs that change nothing
LONGEST_COMMAND = 100  # characters; the interpreter cuts commands at 198 bytes
HELD_OUT = 1 << 20  # games in the pool of every split but "train"


@register(
    "environment",
    "textworld",
    ignores_if={
        "games": ("challenge", "mode", "rooms", "quest_length", "goal", "train_games"),
        "games=None": ("eval_games", "held_out"),
    },
    source="arXiv 1806.11532",
    extra="envs",
    modules=("textworld",),
)
class TextWorld:
    """Find and bring objects in a generated house, by text commands.

    Args:
        challenge: the kind of game, with the time to make one. "treasure_hunter": search a maze for the object
            that the goal names, and do not take the wrong one; 0.04 s. "coin_collector": walk a chain of rooms to a
            coin; 0.5 s. "simple": leave the bedroom and put the right food on the stove, in 8–12 actions; 0.8 s.
        mode: treasure_hunter: "easy" has no doors and no furniture, "medium" adds doors and furniture, "hard" locks
            some of them. coin_collector: "hard" has dead ends that branch. simple: how often the score rises: often
            ("easy"), less often ("medium"), at the end only ("hard").
        rooms: size of the maze. Higher: longer search. Usual: 6. At least `quest_length` for coin_collector.
        quest_length: actions of the shortest solution. Higher: harder. Usual: 2–5. Not read by "simple".
        backend: the games are the same. "logic" plays the game's rules in Python and describes the situation in four
            short lines; a step takes 0.5 ms. "compiled" plays the compiled game in the Z-machine interpreter and shows
            its prose; a step takes 2 ms, a reset 11 ms, and the first play of a game 0.5 s to compile it. This prose
            describes a room only on entering, so choose a context that keeps earlier turns.
        goal: what the text shows as the goal. "last": the last command of the solution. "prose": TextWorld's
            instructions, which describe every action of the solution in varied words.
        show_commands: end the text with the admissible commands.
        passive: offer the commands examine, inventory and look, which change nothing and cost a turn.
        reward: "win": 1 for winning, else 0. "score": the game's points, scaled so that winning gives 1 in total.
        max_turns: turns until the episode is cut off. Commands that the game does not understand count.
        train_games: how many games the split "train" draws from. Higher: less memorizing. Usual: 1000.
        games: game files of your own, in place of generated games: a file, a folder, a pattern such as `games/*.z8`, or
            several of them. `tw-make` makes `.z8` files, each with a `.json` file that must stay beside it. A `.json`
            alone is played as well. `.tw-pddl` files are those of ALFWorld, and need `palaestra[pddl]`; play only files
            that you trust, because they contain Python.
        eval_games: game files for evaluation. Games of the same content are taken out of training. None: `held_out`.
        held_out: share of `games` that is never trained on, by content. If none or all would be held out, the same
            games serve both. Usual: 0.2.
        cache: folder for generated and compiled games. None: $PALAESTRA_CACHE/textworld, else
            ~/.cache/palaestra/textworld.

    A game file shows its own objective, and its score in [0, 1]. `backend: compiled` plays a `.z8` file itself.
    ALFWorld leaves out games that cannot be solved, and so does this environment.
    Observation: `text`; `legal`, the admissible commands in alphabetical order; `state_key`, a hash of all facts.
    Info: `score` in [0, 1]; `success` at the end.
    Expert: the next command of the game's winning policy; for ALFWorld's games, of Fast Downward's plan.
    Raises: MissingExtra, if textworld is not installed; InvalidData, if there are no games, or one cannot be read.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "instruction", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        challenge: Challenge = "treasure_hunter",
        mode: Mode = "easy",
        rooms: Annotated[int, pydantic.Field(ge=2, le=100)] = 6,
        quest_length: PositiveInt = 4,
        backend: Literal["logic", "compiled"] = "logic",
        goal: Literal["last", "prose"] = "last",
        show_commands: bool = True,
        passive: bool = True,
        reward: Literal["win", "score"] = "win",
        max_turns: PositiveInt = 12,
        train_games: PositiveInt = 1000,
        games: Annotated[str | tuple[str, ...] | None, Files()] = None,
        eval_games: Annotated[str | tuple[str, ...] | None, Files()] = None,
        held_out: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.2,
        cache: str | None = None,
    ) -> None:
        package()
        note_version(NAME)
        patterns, apart = _patterns(games), _patterns(eval_games)
        self._library = library(patterns, apart, held_out) if patterns else None
        if self._library is None:
            self.abilities = without(self.abilities, "content")
        self._world = {"challenge": challenge, "mode": mode, "rooms": rooms, "quest_length": quest_length}
        self._backend, self._goal, self._reward = backend, goal, reward
        self._show_commands, self._passive = show_commands, passive
        self._max_turns, self._train_games = max_turns, train_games
        self._folder = cache_folder(cache)
        self._player: Player | None = None
        self._task_hash, self._goal_text, self._turn, self._score = "", "", 0, 0.0

    # ---- the protocol -------------------------------------------------------------------------------------
    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        ending = f"The episode succeeds when the goal is reached.{turn_limit(self._max_turns)}"
        if self._library is not None:
            commands = commands_of(next(iter(self._library.games.values())))
            if not self._passive:
                commands = {one: "" for one in commands if one.partition(" ")[0] not in PASSIVE}
            about = "You play a text game and reach the goal that the first text names, by text commands."
            return write_manual(about, commands, example=next(iter(commands), ""), ending=ending)
        passive = {"look": "", "inventory": "", "examine THING": ""} if self._passive else {}
        return write_manual(
            "You are in a house and reach the goal that the text names, by text commands.",
            {
                "go north, go east, go south, go west": "",
                "take THING": "",
                "take THING from THING": "",
                "drop THING": "",
                "put THING on THING, insert THING into THING": "",
                "open THING, close THING": "",
                "unlock THING with KEY, lock THING with KEY": "",
                "eat FOOD": "",
                **passive,
            },
            example="go east",
            ending=ending,
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games. "train" draws from a pool of `train_games`, each other split from its own pool of a million.

        Of a user's games, "train" draws from those for training, and each other split from those held out.
        """
        if self._library is not None:
            return self._own_tasks(self._library, split, n, seed)
        pool = self._train_games if split == "train" else HELD_OUT
        draw = random.Random(derive(seed, "textworld", split))
        numbers: list[int] = []
        while len(numbers) < n:  # no game repeats before the pool is used up
            numbers += draw.sample(range(pool), min(pool, n - len(numbers)))
        seeds = [derive(number, "textworld", split) for number in numbers]
        length = None if self._world["challenge"] == "simple" else float(self._world["quest_length"])
        return [Task(env="textworld", params=self._world, seed=s, split=split, difficulty=length) for s in seeds]

    def _own_tasks(self, games: Library, split: str, n: int, seed: int) -> list[Task]:
        pool = sorted(games.train if split == "train" else games.held_out)
        draw = random.Random(derive(seed, NAME, split))
        drawn: list[str] = []
        while len(drawn) < n:
            drawn += draw.sample(pool, min(len(pool), n - len(drawn)))
        return [
            Task(
                env=NAME,
                params={"game": str(games.games[digest].path)},
                seed=int(digest, 16) % (1 << 31),
                key=games.games[digest].name,
                split=split,
                content=digest,
            )
            for digest in drawn
        ]

    def content(self, task: Task) -> str:
        """The hash of what makes the game."""
        return self._file(task).digest

    def reset(self, task: Task) -> StepResult:
        self.close()
        if self._library is None:
            self._player, self._goal_text = self._generated(task)
        else:
            self._player, self._goal_text = self._own(self._file(task))
        self._task_hash, self._turn, self._score = task.content_hash, 0, 0.0
        return single(AGENT, self._observe(), info={"score": 0.0})

    def _generated(self, task: Task) -> tuple[Player, str]:
        """A player of a generated game, and the goal that is shown."""
        design = Design(**{**self._world, **task.params}, seed=task.seed)
        game = load(design, self._folder)
        player: LogicPlayer | CompiledPlayer
        if self._backend == "compiled":
            player = CompiledPlayer(game, load_compiled(design, self._folder))
        else:
            player = LogicPlayer(game)
        solution = player.state.winning_policy
        return player, command_of(game, solution[-1]) if self._goal == "last" else game.objective

    def _own(self, file: File) -> tuple[Player, str]:
        """A player of a user's game, and the goal that is shown."""
        if file.kind == ".tw-pddl":
            alone = PddlPlayer(file.path)
            return alone, alone.goal
        game = load_file(file.logic)
        if self._backend == "logic":
            return LogicPlayer(game), game.objective
        path = file.path if file.kind == ".z8" else compiled(game, f"own-{file.digest}", self._folder)
        return CompiledPlayer(game, path), game.objective

    def _file(self, task: Task) -> File:
        """The game file of a task. Raises: InvalidData, if it is not among `games`."""
        assert self._library is not None
        found = self._library.games.get(task.content or "")
        name = task.params.get("game")
        found = found or next((one for one in self._library.games.values() if str(one.path) == name), None)
        if found is None:
            remedy = "Ask `tasks` for tasks, or correct `games`."
            raise InvalidData(where=WHERE, what=f"there is no game {name} among `games`.", remedy=remedy)
        return found

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        player = self._playing()
        understood = player.step(_command(actions[AGENT]))
        self._turn += 1
        progress = player.progress
        won, lost, score = progress.completed, progress.failed, progress.score
        gained, self._score = score - self._score, score
        over = won or lost
        cut = not over and self._turn >= self._max_turns
        info = {"score": score} | ({"success": won} if over or cut else {})
        return single(
            AGENT,
            None if over else self._observe(),
            reward=float(won) if self._reward == "win" else gained,
            over=over,
            cut=cut,
            readable=understood,
            info=info,
        )

    def close(self) -> None:
        if self._player is not None:
            self._player.close()
        self._player = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next command of the game's winning policy, which knows the whole map, or of a plan.

        If the game can no longer be won, it is the first legal command.
        """
        return Action(text=self._playing().progress.plan() or (self._legal() or ["look"])[0])

    def snapshot(self) -> Any:
        return self._playing().copy(), self._task_hash, self._goal_text, self._turn, self._score

    def restore(self, state: Any) -> None:
        player, self._task_hash, self._goal_text, self._turn, self._score = state
        self._player = player.copy()  # playing must not change the snapshot

    # ---- observations -------------------------------------------------------------------------------------
    def _playing(self) -> Player:
        if self._player is None:
            raise unstarted(self)
        return self._player

    def _legal(self) -> list[str]:
        commands = list(self._playing().commands)
        return commands if self._passive else [c for c in commands if c.partition(" ")[0] not in PASSIVE]

    def _observe(self) -> Observation:
        legal = self._legal()
        lines = [f"goal: {self._goal_text}"] if self._goal_text else []
        lines.append(self._playing().feedback)
        if self._show_commands:
            lines.append(f"commands: {' | '.join(legal)}")
        return Observation(text="\n".join(lines), legal=legal, state_key=self._state_key())

    def _state_key(self) -> str:
        facts = self._playing().progress.facts()
        return hashlib.sha256("\n".join((self._task_hash, *facts)).encode()).hexdigest()[:16]


def _patterns(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def _command(action: Action) -> str:
    """The typed command: the first line, in lower case, with single spaces."""
    lines = str(action.value or "").strip().lower().splitlines()
    return " ".join(lines[0].split())[:LONGEST_COMMAND] if lines else ""
