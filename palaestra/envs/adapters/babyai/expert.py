"""The expert of BabyAI: the package's bot, kept sane after actions that it did not advise.

Knows the bot and a level. Knows nothing of observations or policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minigrid.utils.baby_ai_bot import BabyAIBot

PATIENCE = 20  # subgoals that the bot may add in one step; a sound plan adds at most eight


class Expert:
    """Advice for the present state of a level.

    The bot keeps a plan and a map of what was seen. From the first question on it is told of every action, so
    that it can mend its plan. When it fails, or believes that it is done, a new bot starts from here with the old map.
    """

    def __init__(self) -> None:
        self._bot: Any = None
        self._advice: Any = None

    def forget(self) -> None:
        """A new episode, or another state: no plan, no map."""
        self._bot = self._advice = None

    def note(self, action: Any, *, over: bool) -> None:
        """The action that was taken."""
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
    """The bot's stack of subgoals. It refuses to grow forever: confused bots go round in circles within one step."""

    def __init__(self, goals: list[Any]) -> None:
        self._goals, self.left = goals, 0

    def append(self, goal: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RecursionError("the bot's plan goes round in circles")
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
    """The bot's next action; None if it is confused."""
    bot.stack.left = PATIENCE
    try:
        return bot.replan(action)
    except Exception:  # it asserts what it expects of the world, and unexpected actions break that in many ways
        return None


def _new_bot(level: Any, old: Any) -> Any:
    bot = BabyAIBot(level)
    bot.stack = _Plan(bot.stack)
    if old is not None:
        bot.vis_mask |= old.vis_mask
    return bot


def _way_out(level: Any) -> Any:
    """Something harmless that changes the state: empty hands, else move."""
    ahead = level.grid.get(*level.front_pos)
    if level.carrying is not None and ahead is None:
        return level.actions.drop
    return level.actions.forward if ahead is None else level.actions.left
