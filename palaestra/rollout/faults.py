"""Tells an error that the code of a user raised from the same error of an episode that somebody ends."""

from __future__ import annotations

import asyncio
from typing import Any


def current_task() -> asyncio.Task[Any] | None:
    """The running task; None without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_ended(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether somebody ends the work of a task, so that what it awaited has raised this error.

    CancelledError and GeneratorExit of a user's own code are errors like any other.

    Args:
        task: that ran when the work began.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit) and (task is None or current_task() is not task)
