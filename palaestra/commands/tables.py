"""Where commands print their tables: as wide as the terminal, and wide enough to be searched in a pipe."""

from __future__ import annotations

from rich.console import Console

PIPE = 200  # columns where nobody looks


def console() -> Console:
    """Standard output."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE)
