"""The expert of BabyAI: the package's bot, made to give advice after actions that it did not advise, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minigrid.utils.baby_ai_bot import BabyAIBot

PATIENCE = 20  # most subgoals that the bot may add in one step; a correct plan adds at most eight


class Expert:
    """Advice for the present state of a level.

    The bot has a plan and a map of the cells it has seen. It is made at the first request for advice. From then on it
    is told of every action, so that it can correct its plan. When it fails, or wrongly believes that it is done, a new
    bot takes over its map.
    """

    def __init__(self) -> None:
        self._bot: Any = None
        self._advice: Any = None

    def forget(self) -> None:
        """Drop the plan and the map, for a new episode or another state."""
        self._bot = self._advice = None

    def note(self, action: Any, *, over: bool) -> None:
        """Tell the bot which action was taken."""
        if self._bot is not None and not over:
            self._advice = _replan(self._bot, action)

    def advise(self, level: Any) -> int:
        """A good action for this state."""
        done = level.actions.done
        if self._advice is None or self._advice == done:
            self._bot = _new_bot(level, self._bot)
            self._advice = None if self._bot is None else _replan(self._bot, None)
        if self._advice is None or self._advice == done:
            self._bot, advice = None, _way_out(level)
            return int(advice)
        return int(self._advice)


class _Plan:
    """The bot's stack of subgoals. It limits the growth in one step, since a confused bot adds subgoals forever."""

    def __init__(self, goals: list[Any]) -> None:
        self._goals, self.left = goals, 0

    def append(self, goal: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RecursionError("the bot adds subgoals without end")
        self._goals.append(goal)

    def pop(self) -> Any:
        return self._goals.pop()

    def __len__(self) -> int:
        return len(self._goals)

    def __getitem__(self, place: int) -> Any:
        return self._goals[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._goals)


def _replan(bot: Any, action: Any) -> Any:
    """The bot's next action, or None if the bot fails."""
    bot.stack.left = PATIENCE
    try:
        return bot.replan(action)
    except Exception:  # the bot asserts what it expects, and unexpected actions break that in many ways
        return None


def _new_bot(level: Any, old: Any) -> Any:
    bot = BabyAIBot(level)
    bot.stack = _Plan(bot.stack)
    if old is not None:
        bot.vis_mask |= old.vis_mask
    return bot


def _way_out(level: Any) -> Any:
    """A harmless action that changes the state: drop what is carried, else go forward or turn left."""
    ahead = level.grid.get(*level.front_pos)
    if level.carrying is not None and ahead is None:
        return level.actions.drop
    return level.actions.forward if ahead is None else level.actions.left
