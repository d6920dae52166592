"""Games: several games of OpenSpiel in one environment, as in the suite of MARS (arXiv 2510.15414).

Each task is one of the games. Rules, seats and rewards are those of the environment `openspiel`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import has, without
from palaestra.envs.adapters.openspiel.world import OpenSpiel, Opponent
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.state import started
from palaestra.errors import ContractError
from palaestra.registry import Fraction, Positive, register

PLACE = "environment games"
STRIDE = (5**0.5 - 1) / 2  # golden ratio: any number of its multiples, modulo 1, covers the unit interval evenly
SIGN = re.compile(r"[A-Z][a-z]{2,}|\S")  # a word such as `Round`, or else one character
SPOKEN = 24  # episodes of each game in `words` that are played at random to collect texts for a tokenizer


@register("environment", "games", source="arXiv 2510.15414", extra="envs", modules=("pyspiel",))
class Games:
    """Several sequential games. Every task is of one game, whose name, without parameters, begins each observation.

    Args:
        games: game strings of OpenSpiel. A single game is allowed.
        weights: how often each game is played, in their order. None given: all equally often. Tasks are spread evenly:
            of 30 tasks of three games, 9 to 11 are of each.
        opponent, seats: as in `openspiel`, for all games.
        text: "game": OpenSpiel's text. "signs": its characters with spaces between them, and a move is its index:
            `x . . o` and `3`. Small models then meet the same few tokens in all games.
        show_actions: True: the text ends with the legal moves.
        reward_max: the most that can be won or lost in each game. As published: 4.
        blunders: share of the expert's moves that are random legal ones. Higher: a worse teacher. 1: all moves are
            random, so there is an expert for every game.
        words: further games whose texts a tokenizer learns, so that a model can play them later.

    Seat i is the agent `player_i`. In a game with fewer players, the last agents do not act.
    Rewards, illegal moves and chance: as in `openspiel`. Each game is scaled by its own payoffs.
    Observation: as in `openspiel`. `vector` begins with the game as one-hot, and ends with zeros in smaller games.
    Info: as in `openspiel`, and `game` in every step, so that episodes that are cut off have it.
    Expert: where all games have one, or with `blunders: 1`.
    Raises: RecipeError, for no game, a game given twice, weights that do not fit, or as `openspiel`; MissingExtra.
    """

    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector", "phrases")

    provides = frozenset({"state_key", "outcome", "game", "illegal"})

    def __init__(
        self,
        *,
        games: tuple[str, ...] = ("tic_tac_toe", "kuhn_poker", "tiny_hanabi"),
        weights: tuple[Positive, ...] = (),
        opponent: Opponent = "self",
        seats: Literal["alternate", "first", "last"] = "alternate",
        reward_max: Positive = 4.0,
        text: Literal["game", "signs"] = "game",
        show_actions: bool = True,
        blunders: Fraction = 0.0,
        words: tuple[str, ...] = (),
    ) -> None:
        _refuse(games, weights)
        options: dict[str, Any] = {"opponent": opponent, "seats": seats}
        self._games = {name: OpenSpiel(game=name, reward_max=reward_max, **options) for name in games}
        self._text, self._show_actions = text, show_actions
        self._weights = np.cumsum(weights or [1.0] * len(games)) / sum(weights or [1.0] * len(games))
        self._blunders, self._words, self._params = blunders, words, options
        inside = list(self._games.values())
        self.agents: tuple[str, ...] = max((one.agents for one in inside), key=len)
        self.action_count: int = max(one.action_count for one in inside)
        sizes = [one.vector_size for one in inside]
        known = [size for size in sizes if size is not None]
        self.vector_size: int | None = len(games) + max(known) if len(known) == len(sizes) else None
        if blunders < 1 and not all(has(one, "expert") for one in inside):
            self.abilities = without(self.abilities, "expert")
        self._name, self._seed, self._moves = "", 0, 0

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You play board and card games. Every message begins with the name of the game and shows what you "
            "see of it. "
            "Answer with one move, written as the game writes it. An illegal move loses.",
            ending="You succeed if you win.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, spread over the games by their weights. Splits share no seed."""
        start = derive(seed, "games", split) % 2**32 / 2**32
        places = [int(np.searchsorted(self._weights, (start + i * STRIDE) % 1.0, side="right")) for i in range(n)]
        names = list(self._games)
        return [
            replace(task, params={"game": names[min(place, len(names) - 1)], **self._params})
            for task, place in zip(seeded_tasks("games", {}, split, n, seed), places, strict=True)
        ]

    def content(self, task: Task) -> Any:
        """The name of the game, and its content as `openspiel` tells it."""
        name = task.params.get("game", next(iter(self._games)))
        return [name, self._games[name].content(task)]

    def reset(self, task: Task) -> StepResult:
        asked = task.params.get("game", next(iter(self._games)))
        if asked not in self._games:
            raise ContractError(
                where=PLACE,
                what=f"the task is of the game `{asked}`, which is not one of `games`.",
                options=list(self._games),
                remedy="Add it to `games`.",
            )
        self._name, self._seed, self._moves = asked, task.seed, 0
        return self._named(self._games[asked].reset(task))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        game = self._playing()
        self._moves += 1
        result = game.step(actions)
        values = [action.value for action in actions.values()]
        if all(isinstance(value, int | np.integer) and 0 <= value < self.action_count for value in values):
            # An index that only another game has is an illegal move, but not an invalid action.
            info = {key: told for key, told in result.info.items() if key != "invalid"}
            result = replace(result, info=info)
        return self._named(result)

    def close(self) -> None:
        for game in self._games.values():
            game.close()
        self._name = ""

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """A move of the game's expert, or a blunder: a random legal move. The task's seed decides which."""
        game = self._playing()
        draw = random.Random(derive(self._seed, "blunder", self._moves))
        if self._blunders and draw.random() < self._blunders:
            move = draw.choice(sorted(game.moves()))
        else:
            move = game.expert(agent).value
        return Action(text=self.moves()[move], value=move)

    def moves(self) -> dict[int, str]:
        """The legal moves: their indices with their texts."""
        moves = self._playing().moves()
        return {move: str(move) for move in moves} if self._text == "signs" else moves

    def snapshot(self) -> Any:
        return self._name, self._seed, self._moves, self._playing().snapshot()

    def restore(self, state: Any) -> None:
        self._name, self._seed, self._moves, inside = state
        self._playing().restore(inside)

    @property
    def phrases(self) -> list[str]:
        """Observations and moves of the games in `words`, for a tokenizer."""
        texts: list[str] = []
        for name in self._words:
            other = Games(games=(name,), blunders=1.0, text=self._text, show_actions=self._show_actions)
            for task in other.tasks("train", SPOKEN, 0):
                result = other.reset(task)
                while result.observations:
                    ((agent, seen),) = result.observations.items()
                    texts += [seen.text or "", *other.moves().values()]
                    result = other.step({agent: other.expert(agent)})
        return texts

    # ---- play ---------------------------------------------------------------------------------------------
    def _playing(self) -> OpenSpiel:
        return started(self._games.get(self._name), self)

    def _named(self, result: StepResult) -> StepResult:
        """The result with the game's name in its observations and its info."""
        return replace(
            result,
            observations={agent: self._shown(seen) for agent, seen in result.observations.items()},
            info={**result.info, "game": self._name},
        )

    def _shown(self, seen: Observation) -> Observation:
        vector = None
        if self.vector_size is not None and seen.vector is not None:
            vector = np.zeros(self.vector_size, np.float32)
            vector[list(self._games).index(self._name)] = 1
            vector[len(self._games) : len(self._games) + len(seen.vector)] = seen.vector
        return replace(seen, text=self._told(seen), vector=vector, state_key=f"{self._name}/{seen.state_key}")

    def _told(self, seen: Observation) -> str:
        name, own = self._name.partition("(")[0].replace("_", " "), seen.text or ""
        if self._text == "signs":
            who, _, shown = own.partition(". ")
            # The board comes last: it always has the same number of signs, so each has a fixed distance from the end.
            first = f"{name}. moves {' '.join(self.moves().values())}." if self._show_actions else f"{name}."
            return f"{first} {who.removeprefix('you are ')}. {' '.join(SIGN.findall(shown))}"
        return f"{name}. {own} actions: {', '.join(self.moves().values())}." if self._show_actions else f"{name}. {own}"


def _refuse(games: tuple[str, ...], weights: tuple[float, ...]) -> None:
    refuse = Refusals(PLACE)
    refuse.when(not games, "no game is named.", "Set `games` to a list of game strings, each once.")
    refuse.when_repeated(games=games)
    refuse.when(
        weights and len(weights) != len(games),
        f"{len(games)} games have {len(weights)} weights.",
        "Give one weight for each game, in the order of `games`, or none.",
    )
