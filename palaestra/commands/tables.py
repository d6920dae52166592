"""The console of the commands. Tables are as wide as the terminal. In a pipe they are wide, so that `grep` works."""

from __future__ import annotations

from rich.console import Console

PIPE = 200  # columns, if the output is not a terminal


class _Plain(Console):
    """A console whose reader may go away. rich would end the program by `exit`."""

    def on_broken_pipe(self) -> None:
        """Raises: BrokenPipeError, the one that is being handled, as `print` does."""
        raise


def console() -> Console:
    """A console on standard output. Raises: BrokenPipeError, when it prints and the reader is gone."""
    found = _Plain(highlight=False)
    return found if found.is_terminal else _Plain(highlight=False, width=PIPE)
