"""Games: several games of OpenSpiel in one environment (the suite of MARS, arXiv 2510.15414); each task is one of them.

Knows names of games, weights and who is asked to teach. Rules, seats and rewards are those of `openspiel`.
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
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.state import started
from palaestra.errors import ContractError
from palaestra.registry import Fraction, Positive, register

PLACE = "environment games"
STRIDE = (5**0.5 - 1) / 2  # of the golden section: its multiples fill the unit interval evenly, wherever they stop
SIGN = re.compile(r"[A-Z][a-z]{2,}|\S")  # a word such as `Round`, else one sign
SPOKEN = 24  # games of each name under `words` that are played at random for a tokenizer


@register("environment", "games", source="arXiv 2510.15414", extra="envs", modules=("pyspiel",))
class Games:
    """Several sequential games; every task is of one, and what agents read begins with its name, without parameters.

    Args:
        games: game strings of OpenSpiel. One alone is allowed: then this is `openspiel` with a name and a teacher.
        weights: how often each is played, in their order; none: all alike. Tasks are spread evenly: of 30 tasks of
            three games 9 to 11 are of each.
        opponent, seats: as in `openspiel`, for all games.
        text: "game" is OpenSpiel's own. "signs" sets each sign of it apart, and a move is its index: `x . . o` and `3`,
            for small models, which then meet the same few tokens in every game.
        show_actions: end the text with the legal moves.
        reward_max: the most that can be won or lost, in every game. As published: 4.
        blunders: share of the expert's moves that are random legal ones. Higher: a worse teacher. 1: one who knows the
            rules only, and there is one for every game.
        words: further games whose texts a tokenizer is made of too, so that they can be read later on.

    Seat i is the agent `player_i`; a game of fewer players leaves the last agents out.
    Rewards, illegal moves and chance: as in `openspiel`, each game scaled by its own payoffs.
    Observation: as there; `vector` has the games one-hot before the seat, and zeros at its end in smaller games.
    Info: as there; `game` from the start, so that cut episodes have it.
    Expert: where each of the games has one, or with blunders: 1.
    Raises: RecipeError, for no game, one twice, weights that do not fit, or as `openspiel` does; MissingExtra.
    """

    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector", "phrases")

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

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games, spread over the names by their weights; splits never share a seed."""
        start = derive(seed, "games", split) % 2**32 / 2**32
        places = [int(np.searchsorted(self._weights, (start + i * STRIDE) % 1.0, side="right")) for i in range(n)]
        names = list(self._games)
        return [
            replace(task, params={"game": names[min(place, len(names) - 1)], **self._params})
            for task, place in zip(seeded_tasks("games", {}, split, n, seed), places, strict=True)
        ]

    def content(self, task: Task) -> Any:
        """The game and what there is to know of it."""
        name = task.params.get("game", next(iter(self._games)))
        return [name, self._games[name].content(task)]

    def reset(self, task: Task) -> StepResult:
        asked = task.params.get("game", next(iter(self._games)))
        if asked not in self._games:
            raise ContractError(
                where=PLACE,
                what=f"the task is of `{asked}`, which is not played here.",
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
            info = {key: told for key, told in result.info.items() if key != "invalid"}  # a move of another game
            result = replace(result, info=info)
        return self._named(result)

    def close(self) -> None:
        for game in self._games.values():
            game.close()
        self._name = ""

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The game's own expert's move, or by `blunders` a random legal one; drawn from the task's seed."""
        game = self._playing()
        draw = random.Random(derive(self._seed, "blunder", self._moves))
        if self._blunders and draw.random() < self._blunders:
            move = draw.choice(sorted(game.moves()))
        else:
            move = game.expert(agent).value
        return Action(text=self.moves()[move], value=move)

    def moves(self) -> dict[int, str]:
        """The legal moves: index → text."""
        moves = self._playing().moves()
        return {move: str(move) for move in moves} if self._text == "signs" else moves

    def snapshot(self) -> Any:
        return self._name, self._seed, self._moves, self._playing().snapshot()

    def restore(self, state: Any) -> None:
        self._name, self._seed, self._moves, inside = state
        self._playing().restore(inside)

    @property
    def phrases(self) -> list[str]:
        """What is read and written in the games under `words`, for a tokenizer."""
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
        """The result with the game's name in what is read and what is told."""
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
            # What has always as many signs stands last, so that each stands at its own distance from the end.
            first = f"{name}. moves {' '.join(self.moves().values())}." if self._show_actions else f"{name}."
            return f"{first} {who.removeprefix('you are ')}. {' '.join(SIGN.findall(shown))}"
        return f"{name}. {own} actions: {', '.join(self.moves().values())}." if self._show_actions else f"{name}. {own}"


def _refuse(games: tuple[str, ...], weights: tuple[float, ...]) -> None:
    refuse = Refusals(PLACE)
    refuse.when(not games, "no game is named.", "Set `games` to a list of game strings, each once.")
    refuse.when_repeated(games=games)
    refuse.when(
        weights and len(weights) != len(games),
        f"{len(weights)} weights for {len(games)} games.",
        "Give one for each game, in their order, or none.",
    )
