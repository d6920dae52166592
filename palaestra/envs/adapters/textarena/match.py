"""A match: one game of the package from start to end, whoever plays it.

Knows the package's games, their messages, invalid moves and rewards. Knows nothing of agents or opponents.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.data import derive
from palaestra.envs.adapters.textarena.package import PLACE, build
from palaestra.envs.kit.randomness import Randomness
from palaestra.errors import ContractError

ATTEMPTS = 5  # a few random starts of some games cannot be played, such as lights that are all out


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of the game to one seat."""

    sender: str
    text: str


class Match:
    """One game, whose random draws come from `seed` alone.

    Raises: ContractError, if the game cannot be set up.
    """

    def __init__(self, game: str, options: Mapping[str, Any], *, players: int, seed: int) -> None:
        self.done, self.crash, self._breaker = False, "", -1
        self.moves = 0  # made by anybody: the clock of all random draws
        self._heard: list[list[Heard]] = [[] for _ in range(players)]
        self._new = [0] * players  # where of `_heard` the seat has not read on
        for attempt in range(ATTEMPTS):
            own = derive(seed, "game", attempt)
            self._randomness = Randomness(own)
            with self._randomness.lent():
                self.game = build(game, options)  # anew: some games change themselves while they are played
                try:
                    self.game.reset(num_players=players, seed=own)
                    return
                except Exception as error:
                    failure = error
        raise ContractError(where=f"{PLACE}, game: {game}", what=f"it could not be set up: {failure}.") from failure

    @property
    def seat(self) -> int:
        """Who is to move."""
        return int(self.game.state.current_player_id)

    @property
    def errors(self) -> int:
        """Invalid moves in a row of who is to move; the game's rules say how many it forgives."""
        return int(getattr(self.game.state, "error_count", 0))

    def listen(self) -> None:
        """Take down what the game says to who is to move."""
        seat = self.seat
        _, messages = self.game.get_observation()
        roles = self.game.state.role_mapping
        alone = self.game.state.num_players == 1
        for sender, text, kind in messages:
            own = getattr(kind, "name", "") == "PLAYER_ACTION" and (sender == seat or alone)
            if not own:  # players know what they said themselves
                self._heard[seat].append(Heard(str(roles.get(sender, "GAME")), str(text)))

    def text(self, *, new: bool) -> str:
        """What who is to move has heard: since its last move, or all of it."""
        heard = self._heard[self.seat][self._new[self.seat] if new else 0 :]
        return "\n".join(f"[{one.sender}] {one.text.strip()}" for one in heard)

    def move(self, text: str) -> bool:
        """Make a move, as text; whether the game took it for valid. A move on which the game breaks down ends it."""
        seat, state = self.seat, self.game.state
        self._new[seat] = len(self._heard[seat])
        before = self.errors
        self.moves += 1
        with self._randomness.lent():
            try:
                done, _ = self.game.step(text)
            except Exception as error:
                self.crash, self._breaker, done = f"{type(error).__name__}: {error}", seat, True
        self.done = bool(done)
        return not (self.crash or self.errors > before or state.game_info[seat]["invalid_move"])

    def rewards(self) -> dict[int, float]:
        """By seat, after the end. Who made the game break down lost it, and nobody won.

        Some games give the reason for a lost game where the reward belongs: a reward that is no number is -1.
        """
        given = {self._breaker: -1.0} if self.crash else self.game.state.rewards or {}
        found = {seat: given.get(seat, 0.0) for seat in range(len(self._heard))}
        return {seat: float(gain) if isinstance(gain, int | float) else -1.0 for seat, gain in found.items()}

    def reason(self) -> str:
        """Why the game ended, in the game's words."""
        told = self.game.state.game_info.get(0, {}).get("reason", "")
        return self.crash or str(told or "")

    def copy(self) -> Match:
        """Another match that goes on in the same way."""
        other = copy.copy(self)
        other.game = copy.deepcopy(self.game)
        other._randomness = copy.copy(self._randomness)
        other._heard = [list(heard) for heard in self._heard]
        other._new = list(self._new)
        return other
