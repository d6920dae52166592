"""The environment `puzzles`: which game a task plays, how boards are shown, and rewards.

The rules of the games are in `lake`, `sokoban` and `mines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.kit.choices import read_choice
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.kit.words import drawn_names
from palaestra.envs.worlds.puzzles.grid import Game
from palaestra.envs.worlds.puzzles.lake import Lake
from palaestra.envs.worlds.puzzles.mines import Mines
from palaestra.envs.worlds.puzzles.sokoban import Sokoban
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
Name = Literal["lake", "sokoban", "mines"]
GAMES: tuple[Name, ...] = get_args(Name)
RULES: dict[str, str] = {
    "lake": "lake: walk over the ice to the goal. A hole ends the episode.",
    "sokoban": "sokoban: walk, and push each box onto a target. You can push one box at a time and never pull, so keep "
    "boxes away from corners.",
    "mines": "mines: reveal every place without a mine. A revealed number says how many of the eight places around it "
    "have mines. Rows and columns are counted from 0. A revealed mine ends the episode.",
}
MINES = {"reveal ROW COLUMN": "look under a place", "flag ROW COLUMN": "mark a place"}
OTHERS = "abcdehijklmnpqruvwyz=%&"  # signs for renamed boards


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A game in progress. It is frozen, so a snapshot needs no copy."""

    game: str
    board: Any
    seed: int
    names: tuple[tuple[str, str], ...]  # pairs of canonical sign and shown sign
    turn: int = 0
    idle: bool = False  # whether the last act changed nothing


@register("environment", "puzzles")
class Puzzles(KeepsState[State]):
    """Solve puzzles on grids of signs: Frozen Lake, Sokoban, Minesweeper.

    Lake: walk over the ice to the goal and avoid the holes (`up`, `right`, `down`, `left`). Sokoban: push boxes onto
    targets with the same moves. Mines: `reveal ROW COLUMN` every place without a mine; `flag ROW COLUMN` only marks a
    place. Every board can be solved, and a field of mines needs no guess.

    Args:
        games: games that tasks play, mixed evenly.
        size: fewest and most rows of the square board, mixed evenly: 3–10 for the lake, 5–8 for Sokoban (with its
            border), 4–8 for mines. Higher: longer solutions. Usual: 4 to 6.
        boxes: number of boxes in Sokoban, 1–3. Higher: longer solutions.
        symbols: "plain", "renamed" (other signs for all things) or "shuffled" (each task draws its signs, which needs
            `legend`).
        text: "board" shows the rows of signs; "brief" says in a few words where things are, for small models.
        legend: whether every observation says what each sign means.
        noise: probability that an act goes wrong. On the lake the agent slips to the left or right of its direction;
            in the other games nothing happens.
        misread: probability that an observation shows a random sign at a random place.
        max_turns: turns until the episode is cut off.

    Reward: 1 when the puzzle is solved, else 0. A hole or a mine ends the episode. A step's `info` has `process` (1 for
    the act that the expert would have chosen), `executable` (0 for an act that changes nothing or cannot be read) and
    `stratum` (the game). An observation's `image` has one pixel for each place. With a single game and a single size,
    observations also have a `vector`, one plane for each sign, and acts can be given by index.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome", "process", "executable", "stratum"})

    def __init__(
        self,
        *,
        games: tuple[Name, ...] = GAMES,
        size: tuple[PositiveInt, PositiveInt] = (5, 6),
        boxes: Annotated[int, pydantic.Field(ge=1, le=3)] = 1,
        symbols: Literal["plain", "renamed", "shuffled"] = "plain",
        text: Literal["board", "brief"] = "board",
        legend: bool = False,
        noise: Fraction = 0.0,
        misread: Fraction = 0.0,
        max_turns: PositiveInt = 30,
    ) -> None:
        _refuse_impossible(games, size, boxes, symbols=symbols, legend=legend)
        made: list[Game] = [Lake(noise), Sokoban(noise, boxes), Mines(noise)]
        self._games = {game.name: game for game in made}
        self._chosen = games
        self._params = {"games": list(games), "size": list(size), "boxes": boxes}
        self._symbols, self._brief, self._legend = symbols, text == "brief", legend
        self._misread, self._max_turns = misread, max_turns
        self._only = self._games[games[0]] if len(games) == 1 and size[0] == size[1] else None
        if self._only is not None:
            self.action_count = len(self._only.acts(self._only.draw(size[0], 0)))
            self.vector_size = size[0] ** 2 * len(self._only.signs)
        else:
            self.abilities = without(self.abilities, "vector")

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        moves = {"up": "", "down": "", "left": "", "right": ""}
        told, commands = list[str](), dict[str, str]()
        for name, game in self._games.items():
            if name in self._chosen:
                told.append(RULES[name])
                commands |= moves if name != "mines" else MINES
                if not self._brief and self._symbols == "plain":
                    told.append(f"Signs: {', '.join(f'{sign} {meaning}' for sign, meaning in game.signs.items())}.")
        return write_manual(
            " ".join(["You solve puzzles on a square board. Each message begins with the name of the game.", *told]),
            commands,
            example=next(iter(commands)).replace("ROW COLUMN", "1 2"),
            ending=f"The episode succeeds when the puzzle is solved.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` boards. Training and evaluation share none."""
        return seeded_tasks("puzzles", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The game and its board."""
        return as_json(self._drawn(task))

    def _drawn(self, task: Task) -> tuple[str, Any]:
        world = {**self._params, **task.params}
        name = world["games"][derive(task.seed, "game") % len(world["games"])]
        fewest, most = world["size"]
        return name, self._games[name].draw(fewest + derive(task.seed, "size") % (most - fewest + 1), task.seed)

    def reset(self, task: Task) -> StepResult:
        name, board = self._drawn(task)
        self.state = State(game=name, board=board, seed=task.seed, names=self._names(self._games[name], task.seed))
        return single(AGENT, self._observe(self.state), info={"success": False, "stratum": name})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        game = self._games[before.game]
        meant = self._read(before, actions[AGENT].value)
        wanted = game.expert(before.board)
        board = before.board
        if meant is not None:
            board = game.act(board, meant, chance=derive(before.seed, "noise", before.turn) / 2**63)
        after = replace(before, board=board, turn=before.turn + 1, idle=board == before.board)
        self.state = after
        won, lost = game.solved(board), game.lost(board)
        return single(
            AGENT,
            self._observe(after),
            reward=float(won),
            over=won or lost,
            cut=after.turn >= self._max_turns,
            act={"process": float(meant is not None and meant == wanted), "executable": float(not after.idle)},
            readable=meant is not None,
            info={"success": won, "stratum": before.game},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act of a solution: a shortest one on the lake and in Sokoban, a proven one among mines. If there is
        no solution any more, the first act of the game's list."""
        state = self.state
        game = self._games[state.game]
        text = game.expert(state.board) or game.acts(state.board)[0]
        return Action(text=text, value=text if self._only is None else game.acts(state.board).index(text))

    # ---- playing ------------------------------------------------------------------------------------------
    def _read(self, state: State, value: Any) -> str | None:
        if self._only is None and not isinstance(value, str):
            return None  # a number would mean another act in each game
        return read_choice(value, self._games[state.game].acts(state.board))

    def _names(self, game: Game, seed: int) -> tuple[tuple[str, str], ...]:
        if self._symbols == "plain":
            return tuple((sign, sign) for sign in game.signs)
        drawn = derive(seed if self._symbols == "shuffled" else 0, game.name, "signs")
        return tuple(drawn_names(tuple(game.signs), OTHERS, drawn).items())

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        game = self._games[state.game]
        shown = dict(state.names)
        rows = [[shown[sign] for sign in row] for row in self._misread_rows(game, state)]
        board = game.brief(state.board) if self._brief else "\n".join(" ".join(row) for row in rows)
        legend = ", ".join(f"{shown[sign]} {meaning}" for sign, meaning in game.signs.items())
        parts = [
            f"{legend}." if self._legend else "",
            "nothing happens." if state.idle else "",
            f"{state.game}:",
            board,
        ]
        return Observation(
            text=(" " if self._brief else "\n").join(part for part in parts if part),
            image=self._picture(game, state),
            vector=self._planes(game, state) if self._only is not None else None,
            legal=game.acts(state.board),
            state_key=f"{state.seed}/{game.rows(state.board)}",
        )

    def _misread_rows(self, game: Game, state: State) -> list[list[str]]:
        rows = game.rows(state.board)
        draw = derive(state.seed, "misread", state.turn)
        if self._misread and draw / 2**63 < self._misread:
            place = derive(draw, "place") % len(rows) ** 2
            rows[place // len(rows)][place % len(rows)] = list(game.signs)[derive(draw, "sign") % len(game.signs)]
        return rows

    def _codes(self, game: Game, state: State) -> np.ndarray:
        signs = list(game.signs)
        return np.array([[signs.index(sign) for sign in row] for row in self._misread_rows(game, state)])

    def _planes(self, game: Game, state: State) -> np.ndarray:
        """float32 (size * size * signs,): for each place, 1 at the index of its sign."""
        return np.eye(len(game.signs), dtype=np.float32)[self._codes(game, state)].ravel()

    def _picture(self, game: Game, state: State) -> np.ndarray:
        """uint8 (size, size, 3): a color for each sign. The colors are far apart."""
        step = 255 // len(game.signs)
        codes = self._codes(game, state)
        return np.stack([codes * step, (codes * 7 * step) % 256, 255 - codes * step], axis=-1).astype(np.uint8)


LIMITS: dict[str, tuple[int, int]] = {"lake": (3, 10), "sokoban": (5, 8), "mines": (4, 8)}


def _refuse_impossible(
    games: tuple[str, ...], size: tuple[int, int], boxes: int, *, symbols: str, legend: bool
) -> None:
    refuse = Refusals("environment: puzzles")
    refuse.when_empty(GAMES, games=games)
    refuse.when_repeated(games=games)
    refuse.when_reversed(size=size)
    for name in games:
        fewest, most = LIMITS[name]
        refuse.when(
            size[0] < fewest or size[1] > most,
            f"`size` is {size[0]} to {size[1]}, and boards of {name} have {fewest} to {most} rows.",
            "Choose a `size` that fits all of `games`.",
        )
    refuse.when(
        "sokoban" in games and boxes > size[0] - 4,
        f"`boxes` is {boxes}, and a Sokoban board of size {size[0]} has room for {size[0] - 4} at most.",
        "Raise `size` or lower `boxes`.",
    )
    refuse.when(
        symbols == "shuffled" and not legend,
        "with `symbols: shuffled` and no legend, an agent cannot know what a sign means.",
        "Set `legend: true`, which explains the signs in every observation, or use `symbols: renamed`.",
    )
