"""A match: one game of the package from start to end, with its messages, invalid moves and rewards."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.data import derive
from palaestra.envs.adapters.textarena.package import PLACE, build
from palaestra.envs.kit.randomness import Randomness
from palaestra.errors import ContractError

ATTEMPTS = 5  # starts that are tried: some cannot be played, such as Lights Out with all lights out


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that one seat gets. `sender`: the game, or another player."""

    sender: str
    text: str


class Match:
    """One game. All its random draws come from `seed`.

    Raises: ContractError, if the game cannot be set up.
    """

    def __init__(self, game: str, options: Mapping[str, Any], *, players: int, seed: int) -> None:
        self.done, self.crash, self._breaker = False, "", -1
        self.moves = 0  # of all players; draws outside of the game derive from it
        self._heard: list[list[Heard]] = [[] for _ in range(players)]
        self._new = [0] * players  # seat → the place in `_heard` of its first message since its last move
        for attempt in range(ATTEMPTS):
            own = derive(seed, "game", attempt)
            self._randomness = Randomness(own)
            with self._randomness.lent():
                self.game = build(game, options)  # a new object each time: playing changes some games for good
                try:
                    self.game.reset(num_players=players, seed=own)
                    return
                except Exception as error:
                    failure = error
        raise ContractError(where=f"{PLACE}, game: {game}", what=f"it could not be set up: {failure}.") from failure

    @property
    def seat(self) -> int:
        """The seat of the player to move."""
        return int(self.game.state.current_player_id)

    @property
    def errors(self) -> int:
        """Invalid moves in a row of the player to move. The game decides how many it allows."""
        return int(getattr(self.game.state, "error_count", 0))

    def listen(self) -> None:
        """Get the game's new messages to the player to move, and keep them."""
        seat = self.seat
        _, messages = self.game.get_observation()
        roles = self.game.state.role_mapping
        alone = self.game.state.num_players == 1
        for sender, text, kind in messages:
            own = getattr(kind, "name", "") == "PLAYER_ACTION" and (sender == seat or alone)
            if not own:  # a player's own moves are not repeated to it
                self._heard[seat].append(Heard(str(roles.get(sender, "GAME")), str(text)))

    def text(self, *, new: bool) -> str:
        """The messages to the player to move: those since its last move, or all."""
        heard = self._heard[self.seat][self._new[self.seat] if new else 0 :]
        return "\n".join(f"[{one.sender}] {one.text.strip()}" for one in heard)

    def move(self, text: str) -> bool:
        """Make a move, as text. Returns whether it was valid. If the game raises an error, the match ends."""
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
        """Seat → reward, after the end. If a move made the game raise an error, its player gets -1, the others get 0.

        Some games write the reason of a loss in place of the reward. Thus a reward that is no number counts as -1.
        """
        given = {self._breaker: -1.0} if self.crash else self.game.state.rewards or {}
        found = {seat: given.get(seat, 0.0) for seat in range(len(self._heard))}
        return {seat: float(gain) if isinstance(gain, int | float) else -1.0 for seat, gain in found.items()}

    def reason(self) -> str:
        """Why the game ended, in the game's words."""
        told = self.game.state.game_info.get(0, {}).get("reason", "")
        return self.crash or str(told or "")

    def copy(self) -> Match:
        """An independent match in the same state, which goes on in the same way."""
        other = copy.copy(self)
        other.game = copy.deepcopy(self.game)
        other._randomness = copy.copy(self._randomness)
        other._heard = [list(heard) for heard in self._heard]
        other._new = list(self._new)
        return other
