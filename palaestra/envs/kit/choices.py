"""Read and write actions that are chosen from a list, by their text or by their index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.data import Action
from palaestra.envs.kit.leniency import read_leniently


def read_choice(value: Any, choices: Sequence[str]) -> str | None:
    """The choice that a text or an index means; None if it means none. `choices` are in lower case.

    Case, extra spaces and what `leniency.stripped` removes make no difference.

    >>> read_choice(" Go  north ", ("go north", "wait")), read_choice(1, ("go north", "wait")), read_choice("go", ())
    ('go north', 'wait', None)
    """
    index = read_index(value, choices)
    return None if index is None else choices[index]


def read_index(value: Any, choices: Sequence[str]) -> int | None:
    """The index of the choice that a text or an index means; None if it means none."""
    if isinstance(value, int | np.integer):
        return int(value) if 0 <= value < len(choices) else None
    return read_leniently(value, lambda text: _listed(text, choices)) if isinstance(value, str) else None


def _listed(text: str, choices: Sequence[str]) -> int | None:
    plain = " ".join(text.lower().split())
    return choices.index(plain) if plain in choices else None


def choice(text: str, choices: Sequence[str]) -> Action:
    """An expert's action for a choice: its text, with its index as the value."""
    return Action(text=text, value=choices.index(text))
