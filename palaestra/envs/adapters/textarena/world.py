"""TextArena (arXiv 2504.11442): text games of one player, of two and of many as environments.

Knows seats, opponents, texts and rewards. Matches come from `match`, what is known of single games from `games`.
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

    Seat i is the agent `player_i`; who plays alone is `player`. A move is written as the game asks, with or without
    its brackets: `[4]` or `4`. Invalid moves are the game's affair: most games forgive one and end at the second.

    Args:
        game: a name of the package, such as "TicTacToe-v0"; the page of this environment lists which work.
        options: of the game's class, over those of its name: `{piles: [2, 3]}` for Nim.
        players: how many play. Default: 2 if the game allows it, else as few as it does.
        opponent: who has the other seats. "self": agents of the run. "random": any legal move. "expert": good play.
            The last two for games whose legal moves, or good play, are known here.
        blunders: share of an opponent expert's moves that are random instead. Higher: easier. Usual: 0 to 0.5.
        seat: against an opponent, the seat of the only agent: by the task's seed, or always the first, or the last.
        text: "new" is what the game said since the agent's last move, for contexts that remember; "all" is everything
            it said; "brief" is the situation in one line with the legal moves, for small models without memory.
        noise: probability that an agent's move slips: a random legal move is made in its place.
        max_turns: moves of agents until the episode is cut off; the opponent's do not count.

    Reward: the game's at its end, −1 to 1 in games of several, 0 to 1 alone; who makes a game break down gets −1.
    Everything random, the game's own draws too, comes from the task's seed.
    Observation: `legal`, where known; `state_key`, the situation where it is known, else all that was heard.
    Info: `game`; `slipped` of an agent whose move did; at the end `success`, whether the agent (in self-play the first)
    won, or solved the puzzle; `score`, its reward as a number from 0 to 1; `reason`, in the game's words.
    Expert: where somebody is known who plays well; it may know what is hidden. Elsewhere there is none.
    Raises: UnknownName; RecipeError, for a game that cannot be had here; MissingExtra.
    """

    abilities: tuple[str, ...] = ("tasks", "expert", "snapshot")

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
        if slips and match.copy().move(_bracketed(move)):  # what is invalid is not saved by a slip
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
        """A good move of who is to move; which of several is drawn from the task's seed."""
        return Action(text=self._written(self._good_move(self._playing(), "expert")))

    def snapshot(self) -> Any:
        return self._playing().copy(), self._seed, self._seat, self._turn

    def restore(self, state: Any) -> None:
        match, self._seed, self._seat, self._turn = state
        self._match = match.copy()  # so that a snapshot can be restored again

    # ---- play ---------------------------------------------------------------------------------------------
    @property
    def _ours(self) -> tuple[str, ...]:
        """The agents who act in this game."""
        return self.agents if self._opponent == "self" else (self.agents[self._seat],)

    def _playing(self) -> Match:
        return started(self._match, self)

    def _draw(self, purpose: str) -> random.Random:
        """Whatever is random outside of the game; the number of moves is the clock, so it needs no state."""
        return random.Random(derive(self._seed, purpose, self._playing().moves))

    def _go_on(self, match: Match) -> None:
        """Let opponents move until one of our agents is asked or the game is over."""
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
        assert self._rules is not None  # else whoever asks was refused
        return self._rules.legal(match.game, match.seat)

    def _good_move(self, match: Match, purpose: str) -> str:
        assert self._rules is not None and self._rules.expert is not None  # else whoever asks was refused
        return self._rules.expert(match.game, match.seat, self._draw(purpose))

    def _written(self, move: str) -> str:
        """As moves are written where this text is shown: brackets are for texts that ask for them."""
        return move if self._text == "brief" else _bracketed(move)

    # ---- what is told -------------------------------------------------------------------------------------
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
        reason = self._rules.why_no_expert if self._rules is not None else "its rules are not known here"
        helped = "Set `opponent: self`, `noise: 0` and `text: new` or `all`."
        refuse = Refusals(f"{PLACE}, game: {self._game}")
        refuse.when(
            failure,
            f"it cannot be played by {self._players}: {failure}.",
            "Leave `players` out, or set another number.",
        )
        against = self._opponent != "self"
        refuse.when(against and self._players == 1, "who plays alone has no opponent.", "Leave `opponent` out.")
        refuse.when(against and not known, "there is no opponent: its legal moves are not known here.", helped)
        refuse.when(
            self._opponent == "expert" and not good,
            f"there is no opponent `expert`: {reason}.",
            "Set `opponent: random`.",
        )
        refuse.when(
            self._blunders and self._opponent != "expert",
            "only an opponent `expert` blunders.",
            "Leave `blunders` out.",
        )
        refuse.when(self._noise and not known, "moves cannot slip: its legal moves are not known here.", helped)
        refuse.when(self._text == "brief" and not known, "there is no brief text of it.", helped)


def _bracketed(move: str) -> str:
    """With brackets where there are none, as the package's own wrapper does it."""
    return move if "[" in move or "]" in move else f"[{move}]"
