"""Texts of others in the tables that rich draws."""

from __future__ import annotations

from rich.markup import escape

from palaestra.process.terminal import visible


def cell(text: object) -> str:
    """A text for a cell of a table: nothing in it is read as a color or moves the cursor."""
    return escape(visible(text))
