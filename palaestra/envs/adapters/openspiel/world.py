"""OpenSpiel (arXiv 1908.09453): board and card games as environments, in self-play or against a fixed opponent.

`games` loads the games and gives the experts. This file makes tasks, observations and rewards.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.openspiel.games import PLACE, common_payoff, load, package, solver
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several
from palaestra.envs.kit.state import started
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import Positive, register

Opponent = Literal["self", "random", "first", "expert"]
Tensor = Literal["observation", "information_state"]


@register(
    "environment",
    "openspiel",
    ignores_if={"opponent=self": ("seats",)},
    source="arXiv 1908.09453",
    extra="envs",
    modules=("pyspiel",),
)
class OpenSpiel:
    """Play a game of OpenSpiel in which players move one after the other. Seat i is the agent `player_i`.

    Args:
        game: a game string of OpenSpiel: `tic_tac_toe`, `kuhn_poker`, `tiny_hanabi` (a two-card signaling game),
            `leduc_poker`, `connect_four`, `kuhn_poker(players=3)` …
        opponent: who plays the other seats. "self": agents of the run. "random": any legal move. "first": always the
            first legal move, a fixed opponent that can be exploited. "expert": the expert, see below.
        seats: the seat of the only agent, against a fixed opponent. "alternate": the task's seed decides. "first" and
            "last": always this seat.
        reward_max: rewards are scaled so that the most that can be won or lost is this.
        show_actions: end the text with the legal moves.
        tensor: which tensor of the game is the vector. "observation": what lies on the table now; in some games the
            player knows more than that from earlier moves. "information_state": all that the player knows, with the
            moves so far. In Leduc poker 936 information states have 516 different observation tensors and 936
            information-state tensors, so a network without memory that reads the observation tensor cannot play well.
            Games of perfect information, such as tic-tac-toe, have no information-state tensor and need none.

    Chance and opponents draw from the task's seed. A move is an index, or its text in OpenSpiel's words. An illegal
    move ends the game: the agent who made it gets -`reward_max`, and the others get nothing.
    Observation: `vector`, the seat one-hot and the game's tensor; `legal`, indices; `state_key`, the position in games
    of perfect information, else the information state.
    Info: `illegal`, for the agent that made an illegal move. At the end `game`; `success`, whether the agent (in
    self-play: player_0) got more than anyone else or, in a game of common payoff, the most that is possible; `score`,
    its payoff, scaled to [0, 1].
    Expert: exact in tic-tac-toe and tiny Hanabi; an equilibrium in Kuhn poker of two players; tree search in other
    zero-sum games of two players with perfect information and no chance. Other games have none.
    Raises: RecipeError, for an unknown game, a game with simultaneous moves, the opponent "expert" in a game without
        one, or a tensor that the game does not have; MissingExtra, if open_spiel is not installed.
    """

    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")

    provides = frozenset({"state_key", "outcome", "game", "illegal"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        game: str = "tic_tac_toe",
        opponent: Opponent = "self",
        seats: Literal["alternate", "first", "last"] = "alternate",
        reward_max: Positive = 1.0,
        show_actions: bool = False,
        tensor: Tensor = "observation",
    ) -> None:
        note_version("openspiel")
        self._game = load(game)
        self._params = {"game": game, "opponent": opponent, "seats": seats}
        self._name, self._opponent, self._seats, self._show_actions = game, opponent, seats, show_actions
        self._players = self._game.num_players()
        bound = max(abs(self._game.min_utility()), abs(self._game.max_utility()))
        self._scale = reward_max / bound if 0 < bound < math.inf else 1.0
        self._reward_max = reward_max
        self.agents: tuple[str, ...] = tuple(f"player_{seat}" for seat in range(self._players))
        self.action_count: int = self._game.num_distinct_actions()
        self._tensor = _known_tensor(self._game, game, tensor)
        self._shape = _tensor_size(self._game, self._tensor)
        self.vector_size: int | None = None if self._shape is None else self._players + self._shape
        if solver(game) is None:
            Refusals(PLACE).when(
                opponent == "expert",
                f"`{game}` has no expert, so there is no opponent `expert`.",
                "Set `opponent` to self, random or first.",
            )
            self.abilities = without(self.abilities, "expert")
        self._state: Any = None
        self._seed, self._seat, self._paid = 0, 0, [0.0] * self._players

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            f"You play {self._name.partition('(')[0].replace('_', ' ')} with {self._players} players. Every "
            "message says "
            "which player you are and shows what you see of the game. Answer with one move, written as the game writes "
            f"it{', such as those that the message lists' if self._show_actions else ''}. An illegal move loses.",
            ending="You succeed if you win, or in a game of common payoff if all get the most that is possible.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games; training and evaluation share no seed."""
        return seeded_tasks("openspiel", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The game and the seat. Chance, such as cards and dice, is not content."""
        return [self._name, self._seat_of(task)]

    def _seat_of(self, task: Task) -> int:
        alternate = task.seed // 2 % self._players  # the last bit of a seed tells its split
        return {"alternate": alternate, "first": 0, "last": self._players - 1}[self._seats]

    def reset(self, task: Task) -> StepResult:
        asked = task.params.get("game", self._name)
        if asked != self._name:
            raise ContractError(where=PLACE, what=f"it plays `{self._name}`, and the task is of `{asked}`.")
        self._seat = self._seat_of(task)
        self._seed, self._paid = task.seed, [0.0] * self._players
        self._state = self._game.new_initial_state()
        self._go_on()
        return several(self._observe(), info={"game": self._name})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        state = self._playing()
        seat = state.current_player()
        name = self.agents[seat]
        move = self._read(actions[name].value)
        if move not in state.legal_actions():
            return self._illegal(name, read=move is not None)
        state.apply_action(move)
        self._go_on()
        over = state.is_terminal()
        return several(
            {} if over else self._observe(),
            rewards=self._pay(),
            over=self._ours if over else (),
            info=self._result() if over else None,
        )

    def close(self) -> None:
        self._state = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """A move of the expert. Equally good moves and mixed strategies draw from the task's seed."""
        state = self._playing()
        choose = solver(self._name)
        assert choose is not None  # `abilities` has "expert" only in games with one
        move = choose(state, self._draw("expert"))
        return Action(text=self.moves()[move], value=move)

    def moves(self) -> dict[int, str]:
        """The legal moves: index → text."""
        return _moves(self._playing())

    def observation(self, state: Any) -> Observation:
        """What the player to move sees in any state of the game. `tables.py` calls it for all states."""
        seat = state.current_player()
        shown, place = _shown(self._game, state, seat)
        text = " ".join(f"you are player {seat}. {shown}".split())
        if self._show_actions:
            text += f" actions: {', '.join(_moves(state).values())}."
        return Observation(
            text=text,
            vector=self._vector(state, seat),
            legal=list(state.legal_actions()),
            state_key=f"{seat}/{place}",
        )

    def snapshot(self) -> Any:
        return self._playing().serialize(), self._seed, self._seat, tuple(self._paid)

    def restore(self, state: Any) -> None:
        written, self._seed, self._seat, paid = state
        self._state, self._paid = self._game.deserialize_state(written), list(paid)

    @property
    def game(self) -> Any:
        """The game as an object of OpenSpiel."""
        return self._game

    # ---- play ---------------------------------------------------------------------------------------------
    @property
    def _ours(self) -> tuple[str, ...]:
        """The agents that act in this game."""
        return self.agents if self._opponent == "self" else (self.agents[self._seat],)

    def _playing(self) -> Any:
        return started(self._state, self)

    def _draw(self, purpose: str) -> random.Random:
        """A generator for this purpose and move. It is made anew from the seed, so a snapshot need not keep it."""
        return random.Random(derive(self._seed, purpose, len(self._state.history())))

    def _go_on(self) -> None:
        """Make the moves of chance and opponents, until an agent has to move or the game is over."""
        state = self._state
        while not state.is_terminal():
            if state.is_chance_node():
                moves, shares = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(self._draw("chance").choices(moves, shares)[0])
            elif self._opponent == "self" or state.current_player() == self._seat:
                return
            else:
                state.apply_action(self._answer(state))

    def _answer(self, state: Any) -> int:
        if self._opponent == "first":
            return int(state.legal_actions()[0])
        draw, choose = self._draw("opponent"), solver(self._name)
        if self._opponent == "expert" and choose is not None:
            return choose(state, draw)
        return int(draw.choice(state.legal_actions()))

    def _read(self, value: Any) -> int | None:
        """The move that an index or a text stands for; it may be illegal. None if it cannot be read."""
        if isinstance(value, str):
            text = " ".join(value.lower().split())
            for move, spelled in self.moves().items():
                if text == spelled.lower():
                    return move
            value = int(text) if text.isdecimal() else None
        if isinstance(value, int | np.integer) and 0 <= value < self.action_count:
            return int(value)
        return None

    # ---- results ------------------------------------------------------------------------------------------
    def _pay(self) -> dict[str, float]:
        """The reward of each acting agent since the last call."""
        now = list(self._state.returns())
        gained = {name: self._scale * (now[seat] - self._paid[seat]) for seat, name in enumerate(self.agents)}
        self._paid = now
        return {name: gained[name] for name in self._ours}

    def _result(self) -> dict[str, Any]:
        payoff, hero = self._state.returns(), 0 if self._opponent == "self" else self._seat
        low, high = self._game.min_utility(), self._game.max_utility()
        others = [gain for seat, gain in enumerate(payoff) if seat != hero]
        shared = common_payoff(self._game) or not others
        won = payoff[hero] >= high if shared else payoff[hero] > max(others)
        score = (payoff[hero] - low) / (high - low) if high > low else 0.0
        return {"game": self._name, "success": bool(won), "score": float(min(max(score, 0.0), 1.0))}

    def _illegal(self, name: str, *, read: bool) -> StepResult:
        info = act_info(name, {"illegal": 1.0}, readable=read)
        info |= {"game": self._name, "success": False, "score": 0.0}
        return several({}, rewards={name: -self._reward_max}, over=self._ours, info=info)

    def _observe(self) -> dict[str, Observation]:
        return {self.agents[self._state.current_player()]: self.observation(self._state)}

    def _vector(self, state: Any, seat: int) -> np.ndarray | None:
        if self._shape is None:
            return None
        whose = np.zeros(self._players, np.float32)
        whose[seat] = 1
        tensor = state.observation_tensor if self._tensor == "observation" else state.information_state_tensor
        return np.concatenate([whose, np.asarray(tensor(seat), np.float32)])


def _moves(state: Any) -> dict[int, str]:
    """The legal moves: index → text."""
    return {move: state.action_to_string(state.current_player(), move) for move in state.legal_actions()}


def _known_tensor(game: Any, name: str, asked: Tensor) -> Tensor | None:
    """The tensor to read: the one asked for, or the information-state tensor if the game has no observation tensor.

    None if the game has neither. Raises: RecipeError, if it lacks the information-state tensor that was asked for.
    """
    kind = game.get_type()
    if asked == "observation" and kind.provides_observation_tensor:
        return "observation"
    if kind.provides_information_state_tensor:
        return "information_state"
    if asked == "information_state":
        raise RecipeError(
            where=PLACE,
            what=f"`{name}` has no information-state tensor.",
            remedy="Leave `tensor` out, to use the observation tensor if the game has one.",
        )
    return None


def _tensor_size(game: Any, tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    shape = game.observation_tensor_shape() if tensor == "observation" else game.information_state_tensor_shape()
    return int(np.prod(shape))


def _shown(game: Any, state: Any, seat: int) -> tuple[str, str]:
    """What a player sees, as text, and the part of its state key that tells situations apart."""
    kind = game.get_type()
    open_cards = kind.information == package().GameType.Information.PERFECT_INFORMATION
    shown = state.observation_string(seat) if kind.provides_observation_string else str(state)
    if open_cards or not kind.provides_information_state_string:
        return shown, str(state) if open_cards else shown
    return shown, state.information_state_string(seat)
