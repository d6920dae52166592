"""What the puzzles share: the protocol of a game, places on a grid, and a search for a shortest way."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

Place = tuple[int, int]  # row, column
SIDES: dict[str, Place] = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class Game(Protocol):
    """One kind of puzzle. A board is a frozen value that holds the whole state, and no method changes it.

    Attributes:
        name: name of the game. signs: canonical sign → its meaning.
    """

    name: str
    signs: dict[str, str]

    def draw(self, size: int, seed: int) -> Any: ...
    def acts(self, board: Any) -> Sequence[str]:
        """Every act that can be read on a board of this size."""
        ...

    def act(self, board: Any, text: str, *, chance: float) -> Any:
        """The board after an act.

        Args:
            chance: a random number in [0, 1). The act goes wrong if it is below the option `noise`. With a negative
                number the act never goes wrong.
        """
        ...

    def solved(self, board: Any) -> bool: ...
    def lost(self, board: Any) -> bool: ...
    def expert(self, board: Any) -> str | None: ...
    def rows(self, board: Any) -> list[list[str]]: ...
    def brief(self, board: Any) -> str:
        """The board in a few words, for small models."""
        ...


def beside(place: Place, side: str, steps: int = 1) -> Place:
    """The place `steps` places away on this side."""
    down, right = SIDES[side]
    return place[0] + steps * down, place[1] + steps * right


def inside(place: Place, size: int) -> bool:
    """Whether a square grid of this size has the place."""
    return 0 <= place[0] < size and 0 <= place[1] < size


def around(place: Place, size: int) -> list[Place]:
    """The places around one, at most eight."""
    row, column = place
    near = ((row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0))
    return [other for other in near if inside(other, size)]


def toward(start: Place, end: Place) -> str:
    """Where `end` lies, seen from `start`, such as `down 2 right 1` or `here`.

    >>> toward((1, 3), (3, 3))
    'down 2'
    """
    down, right = end[0] - start[0], end[1] - start[1]
    parts = [f"{'down' if down > 0 else 'up'} {abs(down)}"] if down else []
    parts += [f"{'right' if right > 0 else 'left'} {abs(right)}"] if right else []
    return " ".join(parts) or "here"


def shortest_way(
    start: Hashable,
    steps: Callable[[Any], Iterable[tuple[str, Any]]],
    done: Callable[[Any], bool],
    *,
    most: int = 200_000,
) -> list[str] | None:
    """The acts of a shortest way from `start` to a state that is `done`. None if there is none, or if the search meets
    more than `most` states.

    Args:
        steps: gives the acts that change a state, each with the next state. Of equally short ways, the first is taken.
    """
    came: dict[Any, tuple[Any, str] | None] = {start: None}
    ring = [start]
    while ring and len(came) <= most:
        following = []
        for state in ring:
            if done(state):
                return _acts(came, state)
            for act, other in steps(state):
                if other not in came:
                    came[other] = state, act
                    following.append(other)
        ring = following
    return None


def _acts(came: dict[Any, tuple[Any, str] | None], state: Any) -> list[str]:
    acts: list[str] = []
    while (step := came[state]) is not None:
        state, act = step
        acts.append(act)
    return acts[::-1]
