"""The console of the commands. Tables are as wide as the terminal. In a pipe they are wide, so that `grep` works."""

from __future__ import annotations

from rich.console import Console

PIPE = 200  # columns, if the output is not a terminal


def console() -> Console:
    """A console on standard output."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE)
