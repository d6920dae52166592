"""TextArena (arXiv 2504.11442): text games of one player, of two and of many as environments.

This file makes tasks, observations, rewards and the moves of opponents. `match` plays a game, and `games` has the legal
moves, brief texts and experts of single games.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any, Literal

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.textarena.games import rules_of
from palaestra.envs.adapters.textarena.match import Match
from palaestra.envs.adapters.textarena.package import PLACE, build, fewest_players, refusal
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import started
from palaestra.errors import ContractError
from palaestra.registry import Fraction, PositiveInt, register


@register(
    "environment",
    "textarena",
    ignores_if={"opponent=self": ("seat", "blunders"), "opponent=random": ("blunders",)},
    source="arXiv 2504.11442",
    extra="envs",
    modules=("textarena",),
)
class TextArena:
    """Play a text game of TextArena: in self-play, against a scripted opponent, or alone.

    Seat i is the agent `player_i`; an agent that plays alone is `player`. A move is written as the game asks, with or
    without its brackets: `[4]` or `4`. The game judges invalid moves: most games allow one, and end at the second in a
    row.

    Args:
        game: a name of the package, such as "TicTacToe-v0"; the page of this environment lists those that work.
        options: keyword arguments of the game's class, which override those of its name: `{piles: [2, 3]}` for Nim.
        players: the number of players. Default: 2 if the game allows it, else the fewest that it allows.
        opponent: who plays the other seats. "self": agents of the run. "random": any legal move. "expert": the game's
            expert. "random" needs a game with a list of legal moves, and "expert" a game with an expert.
        blunders: share of the opponent expert's moves that are random instead. Higher: easier. Usual: 0 to 0.5.
        seat: the seat of the only agent, against an opponent. "alternate": the task's seed decides. "first" and
            "last": always this seat.
        text: "new": what the game said since the agent's last move, for contexts that keep earlier turns. "all":
            everything that it said. "brief": the situation in one line with the legal moves, for small models without
            memory.
        noise: probability that an agent's valid move slips: a random legal move is made in its place.
        max_turns: moves of agents until the episode is cut off. The opponent's moves do not count.

    Reward: the game's own at its end: −1 to 1 with several players, 0 to 1 alone. A player whose move makes the game
    raise an error gets −1.
    All randomness, also the game's own, comes from the task's seed.
    Observation: `text`; `legal`, if the game has a list of legal moves; `state_key`, the situation in such games, else
    all texts so far.
    Info: `game`; `slipped`, for an agent whose move slipped. At the end `success`, whether the agent (in self-play the
    first) won or solved the puzzle; `score`, its reward scaled to [0, 1]; `reason`, in the game's words.
    Expert: in some games; it may use what is hidden from players. The page of this environment lists these games.
    Raises: UnknownName; RecipeError, for a game that cannot be built here; MissingExtra.
    """

    abilities: tuple[str, ...] = ("tasks", "instruction", "expert", "snapshot")

    provides = frozenset({"state_key", "outcome"})

    def __init__(
        self,
        *,
        game: str = "TicTacToe-v0",
        options: dict[str, Any] | None = None,
        players: PositiveInt | None = None,
        opponent: Literal["self", "random", "expert"] = "self",
        blunders: Fraction = 0.0,
        seat: Literal["alternate", "first", "last"] = "alternate",
        text: Literal["new", "all", "brief"] = "new",
        noise: Fraction = 0.0,
        max_turns: PositiveInt = 100,
    ) -> None:
        note_version("textarena")
        self._game, self._options = game, dict(options or {})
        self._rules = rules_of(build(game, self._options))
        self._players = players or fewest_players(game, json.dumps(self._options, sort_keys=True))
        self._opponent, self._seat_rule, self._text = opponent, seat, text
        self._blunders, self._noise, self._max_turns = blunders, noise, max_turns
        self._refuse_impossible()
        self.agents: tuple[str, ...] = (
            ("player",) if self._players == 1 else tuple(f"player_{number}" for number in range(self._players))
        )
        self._params = {
            "game": game,
            "options": self._options,
            "players": self._players,
            "opponent": opponent,
            "blunders": blunders,
            "seat": seat,
            "noise": noise,
        }
        if self._rules is None or self._rules.expert is None:
            self.abilities = without(self.abilities, "expert")
        self._match: Match | None = None
        self._seed, self._seat, self._turn = 0, 0, 0

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            f"You play {self._game}. The messages show its rules and what happened. Answer with one move in the "
            "form that "
            "the rules ask for. An invalid move may lose the game.",
            ending=f"You succeed if you win, or solve the puzzle.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games; training and evaluation share no seed."""
        return seeded_tasks("textarena", self._params, split, n, seed)

    def reset(self, task: Task) -> StepResult:
        asked = task.params.get("game", self._game)
        if asked != self._game:
            raise ContractError(where=PLACE, what=f"it plays `{self._game}`, and the task is of `{asked}`.")
        self._seed, self._turn = task.seed, 0
        by_turns = task.seed // 2 % self._players  # the last bit of a seed tells its split
        self._seat = {"alternate": by_turns, "first": 0, "last": self._players - 1}[self._seat_rule]
        if self._opponent == "self":
            self._seat = 0
        self._match = Match(self._game, self._options, players=self._players, seed=task.seed)
        self._go_on(self._match)
        if self._match.done:
            raise ContractError(where=f"{PLACE}, game: {self._game}", what="the game ended before the agent's turn.")
        return several(self._observe(self._match), info={"game": self._game})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        match = self._playing()
        name = self.agents[match.seat]
        move, told = str(actions[name].value), dict[str, float]()
        slips = self._noise and self._draw("noise").random() < self._noise
        if slips and match.copy().move(_bracketed(move)):  # an invalid move stays invalid: it does not slip
            move = self._draw("slip").choice(self._legal(match))
            told["slipped"] = 1.0
        info = act_info(name, told, readable=match.move(_bracketed(move))) | {"game": self._game}
        self._turn += 1
        self._go_on(match)
        cut = not match.done and self._turn >= self._max_turns
        rewards = match.rewards() if match.done else {}
        return several(
            {} if match.done else self._observe(match),
            rewards={self.agents[seat]: gain for seat, gain in rewards.items() if self.agents[seat] in self._ours},
            over=self._ours if match.done else (),
            cut=self._ours if cut else (),
            info=info | self._result(match, rewards) if match.done or cut else info,
        )

    def close(self) -> None:
        self._match = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """A move of the game's expert for the player to move. Equally good moves are drawn from the task's seed."""
        return Action(text=self._written(self._good_move(self._playing(), "expert")))

    def snapshot(self) -> Any:
        return self._playing().copy(), self._seed, self._seat, self._turn

    def restore(self, state: Any) -> None:
        match, self._seed, self._seat, self._turn = state
        self._match = match.copy()  # playing must not change the snapshot

    # ---- play ---------------------------------------------------------------------------------------------
    @property
    def _ours(self) -> tuple[str, ...]:
        """The agents that act in this game."""
        return self.agents if self._opponent == "self" else (self.agents[self._seat],)

    def _playing(self) -> Match:
        return started(self._match, self)

    def _draw(self, purpose: str) -> random.Random:
        """A generator for this purpose and move. It is made anew from the seed, so a snapshot need not keep it."""
        return random.Random(derive(self._seed, purpose, self._playing().moves))

    def _go_on(self, match: Match) -> None:
        """Make the opponents' moves, until an agent has to move or the game is over."""
        while not match.done and self.agents[match.seat] not in self._ours:
            blunder = self._blunders and self._draw("blunder").random() < self._blunders
            if self._opponent == "random" or blunder:
                move = self._draw("opponent").choice(self._legal(match))
            else:
                move = self._good_move(match, "opponent")
            match.move(_bracketed(move))
        if not match.done:
            match.listen()

    def _legal(self, match: Match) -> list[str]:
        assert self._rules is not None  # options that need rules were refused
        return self._rules.legal(match.game, match.seat)

    def _good_move(self, match: Match, purpose: str) -> str:
        assert self._rules is not None and self._rules.expert is not None  # options that need it were refused
        return self._rules.expert(match.game, match.seat, self._draw(purpose))

    def _written(self, move: str) -> str:
        """The move in the form that the text asks for: the game's own texts ask for brackets, `brief` does not."""
        return move if self._text == "brief" else _bracketed(move)

    # ---- observations and results -------------------------------------------------------------------------
    def _observe(self, match: Match) -> dict[str, Observation]:
        seat, rules = match.seat, self._rules
        everything = match.text(new=False)
        legal = None if rules is None else [self._written(move) for move in self._legal(match)]
        if rules is None:
            key = hashlib.sha256(everything.encode()).hexdigest()[:16]
        else:
            key = f"{seat}/{match.errors}/{rules.brief(match.game, seat)}"
        if self._text == "brief" and rules is not None and legal is not None:
            again = "that was invalid, try again. " if match.errors else ""
            text = f"{again}{rules.brief(match.game, seat)}\nmoves {', '.join(legal)}"
        else:
            text = everything if self._text == "all" else match.text(new=True)
        return {self.agents[seat]: Observation(text=text, legal=legal, state_key=key)}

    def _result(self, match: Match, rewards: Mapping[int, float]) -> dict[str, Any]:
        own = rewards.get(self._seat, 0.0)
        if self._players == 1:
            won, score = own >= 1, own
        else:
            won, score = own > 0 and own == max(rewards.values()), (own + 1) / 2
        found: dict[str, Any] = {
            "success": bool(rewards) and won,
            "score": min(max(score, 0.0), 1.0) if rewards else 0.0,
        }
        return found | ({"reason": match.reason()} if match.done else {})

    def _refuse_impossible(self) -> None:
        known, good = self._rules is not None, self._rules is not None and self._rules.expert is not None
        failure = refusal(self._game, self._options, self._players)
        reason = self._rules.why_no_expert if self._rules is not None else "Palaestra has no rules for it"
        helped = "Set `opponent: self`, `noise: 0` and `text: new` or `all`."
        lacking = "needs a list of legal moves, and Palaestra has none for this game."
        refuse = Refusals(f"{PLACE}, game: {self._game}")
        refuse.when(
            failure,
            f"it cannot be played by {self._players}: {failure}.",
            "Leave `players` out, or set another number.",
        )
        against = self._opponent != "self"
        refuse.when(
            against and self._players == 1,
            f"`opponent` is {self._opponent}, and the game has one player.",
            "Leave `opponent` out.",
        )
        refuse.when(against and not known, f"`opponent: {self._opponent}` {lacking}", helped)
        refuse.when(
            self._opponent == "expert" and not good,
            f"there is no opponent `expert`: {reason}.",
            "Set `opponent: random`.",
        )
        refuse.when(
            self._blunders and self._opponent != "expert",
            f"`blunders` is {self._blunders:g}, and only an opponent `expert` blunders.",
            "Leave `blunders` out, or set `opponent: expert`.",
        )
        refuse.when(self._noise and not known, f"`noise: {self._noise:g}` {lacking}", helped)
        refuse.when(self._text == "brief" and not known, "Palaestra has no `text: brief` of this game.", helped)


def _bracketed(move: str) -> str:
    """The move with brackets around it if it has none, as the package's own wrapper writes it."""
    return move if "[" in move or "]" in move else f"[{move}]"
