"""Words for four of Gymnasium's toy-text environments: texts of observations, names of actions, and what is a success.

It also has the search for shortest ways, for the expert.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPASS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
PLACES = ("red", "green", "yellow", "blue")  # the four stands of Taxi, in the order of its encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One environment in words.

    Attributes:
        actions: a name for each action, in order.
        rules: what the agent should do, in a few sentences.
        describe: gives the text of an observation of the unwrapped environment.
        succeeded: whether an episode reached the goal that terminated with this last reward. None: there is no goal.
    """

    actions: tuple[str, ...]
    rules: str
    describe: Callable[[Any, Any], str]
    succeeded: Callable[[float], bool] | None = None


def frozen_lake(environment: Any, observation: Any) -> str:
    """Position, goal, and what lies on each side."""
    kinds = {b"S": "ice", b"F": "ice", b"H": "hole", b"G": "goal"}
    row, column = divmod(int(observation), environment.ncol)
    goals = [(r, c) for r in range(environment.nrow) for c in range(environment.ncol) if environment.desc[r, c] == b"G"]
    sides = []
    for name, (down, right) in COMPASS.items():
        r, c = row + down, column + right
        inside = 0 <= r < environment.nrow and 0 <= c < environment.ncol
        sides.append(f"{name}: {kinds[bytes(environment.desc[r, c])] if inside else 'edge'}")
    goal = ", ".join(f"row {r} column {c}" for r, c in goals)
    return f"you are at row {row} column {column}\ngoal at {goal}\n{', '.join(sides)}"


def taxi(environment: Any, observation: Any) -> str:
    """Position of the taxi, open sides, passenger and destination."""
    row, column, passenger, destination = (int(number) for number in environment.decode(int(observation)))
    grid = environment.desc
    sides = {
        "south": row < 4,
        "north": row > 0,
        "east": bytes(grid[row + 1, 2 * column + 2]) == b":",
        "west": bytes(grid[row + 1, 2 * column]) == b":",
    }
    stands = ", ".join(f"{name} at row {r} column {c}" for name, (r, c) in zip(PLACES, environment.locs, strict=True))
    return "\n".join(
        (
            f"taxi at row {row} column {column}",
            f"open: {', '.join(name for name, way in sides.items() if way)}",
            f"passenger: {'in the taxi' if passenger == 4 else PLACES[passenger]}",
            f"destination: {PLACES[destination]}",
            stands,
        )
    )


def cliff_walking(environment: Any, observation: Any) -> str:
    """Position, goal, and what lies on each side."""
    height, width = environment.shape
    row, column = divmod(int(observation), width)
    sides = []
    for name in ("up", "right", "down", "left"):
        down, right = COMPASS[name]
        r, c = row + down, column + right
        if not (0 <= r < height and 0 <= c < width):
            kind = "edge"
        else:
            kind = "cliff" if environment._cliff[r, c] else "goal" if (r, c) == (height - 1, width - 1) else "ground"
        sides.append(f"{name}: {kind}")
    return f"you are at row {row} column {column}\ngoal at row {height - 1} column {width - 1}\n{', '.join(sides)}"


def blackjack(environment: Any, observation: Any) -> str:
    """The player's sum, whether an ace counts 11, and the dealer's open card."""
    total, dealer, ace = (int(number) for number in observation)
    return f"your cards: {total}{' with a usable ace' if ace else ''}\ndealer shows: {'ace' if dealer == 1 else dealer}"


def _positive(reward: float) -> bool:
    return reward > 0


def _always(reward: float) -> bool:
    return True  # CliffWalking terminates only at the goal, with reward −1


WORDS: dict[str, Words] = {  # by the name of the class, which all versions and sizes share
    "FrozenLakeEnv": Words(
        actions=("left", "down", "right", "up"),
        rules="Walk over a frozen lake to the goal. A hole in the ice ends the episode. You may slip to a side.",
        describe=frozen_lake,
        succeeded=_positive,
    ),
    "TaxiEnv": Words(
        actions=("south", "north", "east", "west", "pick up", "drop off"),
        rules="You drive a taxi. Drive to the place where the passenger waits and pick up. Then drive to the "
        "destination and drop off. South makes the row larger, east the column. You can drive only where it is open.",
        describe=taxi,
        succeeded=_positive,
    ),
    "CliffWalkingEnv": Words(
        actions=("up", "right", "down", "left"),
        rules="Walk to the goal. A step over the cliff brings you back to the start.",
        describe=cliff_walking,
        succeeded=_always,
    ),
    "BlackjackEnv": Words(
        actions=("stick", "hit"),
        rules="You play blackjack. Hit draws a card. Above 21 you lose. Stick ends your draws: then the dealer draws, "
        "and the higher sum wins.",
        describe=blackjack,
    ),
}


# ---- shortest ways in known tables ------------------------------------------------------------------------
def deterministic(table: Any) -> bool:
    """Whether each P[state][action] = [(probability, next, reward, end), …] of a table has a single outcome."""
    return all(len(outcomes) == 1 for actions in table.values() for outcomes in actions.values())


def shortest(table: Any, state: int, succeeded: Callable[[float], bool]) -> int | None:
    """The first action of a shortest way from `state` to a successful end, or None if there is no way."""
    seen, queue = {state}, deque([(state, None)])
    while queue:
        here, first = queue.popleft()
        for action, [(_, there, reward, end)] in table[here].items():
            begun = action if first is None else first
            if end and succeeded(float(reward)):
                return int(begun)
            if not end and there not in seen:
                seen.add(there)
                queue.append((there, begun))
    return None
