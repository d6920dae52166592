"""Stuck episodes: programs whose roles wait for each other, and for nothing that could ever happen.

An episode is stuck when none of its acts, steps, tools or watchers is under way and nothing has happened in it for a
while. Its program is then ended, and the episode is recorded as failed. Knows episodes and the event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from palaestra.errors import EpisodeFailure

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

LOOKS = 4  # how often an episode is looked at before it counts as stuck


@dataclass(slots=True, eq=False)
class _Seen:
    """One episode under watch: the task that plays it, how far it was when looked at, and since when."""

    episode: Episode
    task: asyncio.Task[object]
    moves: int = -1
    since: float = 0.0
    stuck: bool = False


@dataclass(slots=True, eq=False)
class Stuck:
    """Ends episodes in which nothing happens for `seconds`; None: never."""

    seconds: float | None
    _open: dict[int, _Seen] = field(default_factory=dict)
    _watch: asyncio.Task[None] | None = None

    def enter(self, episode: Episode) -> None:
        """Watch an episode that the running task plays."""
        task = asyncio.current_task()
        if self.seconds is None or task is None:
            return
        self._open[id(episode)] = _Seen(episode, task)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look(self.seconds))

    def leave(self, episode: Episode) -> None:
        """The episode is over."""
        self._open.pop(id(episode), None)

    def found(self, episode: Episode) -> bool:
        """Whether this is why the episode's task was canceled."""
        seen = self._open.get(id(episode))
        return seen is not None and seen.stuck

    def close(self) -> None:
        """Stop looking."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None

    async def _look(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / LOOKS)
            now = time.monotonic()
            for seen in list(self._open.values()):
                if seen.episode.under_way or seen.episode.moves != seen.moves:
                    seen.moves, seen.since = seen.episode.moves, now
                elif now - seen.since >= seconds and not seen.stuck:
                    seen.stuck = True
                    seen.task.cancel()


def failure(episode: Episode, program: str, seconds: float) -> EpisodeFailure:
    """What a stuck episode is recorded with."""
    acted = [f"{name} ({agent.acts} acts)" for name, agent in episode.agents.items()]
    return EpisodeFailure(
        boundary="part",
        where=f"program {program}, episode {episode.trajectory.id}",
        what=f"it stands still: nothing has happened for {seconds:g} s, and no act or step is under way. Roles so far: "
        f"{', '.join(acted) or 'none'}.",
        remedy="Look for roles that wait for each other. If the program waits for something of its own, wrap that in "
        "`with episode.busy():`, or raise `rollout.stuck_seconds`.",
    )
