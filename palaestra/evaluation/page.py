"""Fills in the templates of the report (`templates/`). They escape all text that comes from runs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from palaestra.data import Observation
from palaestra.process.terminal import visible

LONGEST = 20_000  # characters of one text of the page


def rendered(template: str, **values: Any) -> Markup:
    """Fill in a file of `templates/`. Returns the HTML."""
    return Markup(_templates().get_template(template).render(values))


@functools.cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": _number, "percent": _percent, "tick": _tick, "seen": _seen, "said": _said}
    return made


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _tick(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"


def _said(value: Any) -> str:
    """A text for the page. A very long one is cut, so that a browser can open it; `trajectories.jsonl` has all of it.

    Halves of characters, which no file can hold, and characters that turn the direction of a line become visible.
    """
    text = str(value)
    cut = f"\n… {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""
    return visible(text[:LONGEST]) + cut


def _seen(seen: Observation) -> str:
    """An observation as text."""
    return _said(_whole(seen))


def _whole(seen: Observation) -> str:
    image = [] if seen.image is None else [f"(an image of {seen.image.shape[1]} × {seen.image.shape[0]} pixels)"]
    if seen.text is not None:
        return "\n".join([seen.text, *image])
    if seen.messages is not None:
        said = [f"{message.get('role', '')}: {message.get('content', '')}" for message in seen.messages]
        return "\n".join([*said, *image])
    if seen.vector is not None:
        return "[" + ", ".join(f"{value:.3g}" for value in seen.vector[:32]) + "]"
    return "".join(image) or "(nothing to see)"
