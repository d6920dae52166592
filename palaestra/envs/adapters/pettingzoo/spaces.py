"""Spaces of PettingZoo agents: turns what an agent sees into an observation, and its answer into an action."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.data import Observation
from palaestra.envs.adapters.spaces import (
    MASK,
    Visible,
    bounds,
    how_to_write,
    in_space,
    in_words,
    is_exact,
    is_readable,
    legal_places,
    numbered,
    simplest,
    size_of,
)
from palaestra.errors import RecipeError

CHANNELS = (1, 3, 4)  # of images
LONG = 32  # vectors of zeros and ones that are longer than this are shown by the places of the ones


@dataclass(frozen=True, slots=True)
class Read:
    """An answer that was understood: the action of the space, and whether it is legal in this situation."""

    action: Any
    legal: bool


class Seat:
    """The spaces of one agent.

    Args:
        agent: its name.
        seen: its observation space.
        acts: its action space.
        names: of the actions of a discrete space, in their order; (): the actions have only numbers.

    Raises: RecipeError, for spaces that agents cannot read or act in.
    """

    def __init__(self, agent: str, seen: spaces.Space[Any], acts: spaces.Space[Any], names: Sequence[str]) -> None:
        where = f"environment pettingzoo, agent {agent}"
        self.agent, self.acts, self._where = agent, acts, where
        self._visible = Visible(seen, acts)
        self.seen = self._visible.space
        if not is_readable(acts) or isinstance(acts, spaces.OneOf | spaces.Sequence):
            raise RecipeError(
                where=where,
                what=f"its action space is {acts}, which agents cannot write.",
                remedy="Wrap the environment so that its actions are Discrete, Text, MultiDiscrete, MultiBinary, a "
                "Box, or a Dict or a Tuple of these.",
            )
        self._actions = numbered(acts)
        self.count: int | None = None if self._actions is None else len(self._actions)
        if names and len(names) != self.count:
            raise RecipeError(
                where=where,
                what=f"`names` has {len(names)} names, and the agent has {self.count or 'no discrete'} actions.",
                remedy="Name each action once, in the order of their numbers, or leave `names` out.",
            )
        self.names = tuple(names)
        shape = getattr(self.seen, "shape", None) or ()
        self.image = getattr(self.seen, "dtype", None) == np.uint8 and len(shape) == 3 and shape[-1] in CHANNELS
        if not self.image and not is_readable(self.seen):
            raise RecipeError(
                where=where,
                what=f"its observation space {self.seen} has no vector of fixed size and no words.",
                remedy="Wrap the environment so that its observations are Text, Box, Discrete, MultiDiscrete, "
                "MultiBinary, or a Tuple or Dict of these.",
            )
        self.size: int | None = None if self.image else size_of(self.seen)
        self.has_keys = not self.image and is_exact(self.seen)

    # ---- seeing -------------------------------------------------------------------------------------------
    def observe(self, raw: Any, info: Any, size: int | None, *, lead: str) -> tuple[Observation, list[Any] | None]:
        """What the agent sees, and its legal actions.

        Args:
            raw: the environment's observation. info: the environment's info for this agent.
            size: of the vector; shorter vectors end with zeros. None: no vector.
            lead: the beginning of the text.

        Returns: the observation, and the legal actions as `legal` gives them.
        """
        found, mask = self._visible.split(raw)
        mask = info.get(MASK) if mask is None and isinstance(info, dict) else mask
        legal = self.legal(mask)
        if self.image:
            picture = np.asarray(found, np.uint8)
            text = f"{lead}an image of {picture.shape[1]} by {picture.shape[0]}"
            return Observation(text=text, image=picture, legal=legal), legal
        if self.size is None:
            text = f"{lead}{in_words(self.seen, found)}{self._listed(legal)}"
            key = self._key(text.encode()) if self.has_keys else None
            return Observation(text=text, legal=legal, state_key=key), legal
        vector = np.nan_to_num(np.asarray(spaces.flatten(self.seen, found), np.float32), posinf=1e6, neginf=-1e6)
        text = f"{lead}{_told(vector)}{self._listed(legal)}"
        padded = np.zeros(size or len(vector), np.float32)
        padded[: len(vector)] = vector
        key = self._key(vector.tobytes() + repr(legal).encode()) if self.has_keys else None
        return Observation(text=text, vector=padded if size else None, legal=legal, state_key=key), legal

    def _listed(self, legal: Sequence[Any] | None) -> str:
        """The line with the names of the legal actions, if they have names."""
        return f"\nactions: {', '.join(self.names[index] for index in legal or ())}" if self.names else ""

    def _key(self, content: bytes) -> str:
        return f"{self.agent}/{hashlib.sha256(content).hexdigest()[:16]}"

    def legal(self, mask: Any) -> list[Any] | None:
        """The indices of the numbered actions that the mask allows; all, if it allows none.

        For a Box: its middle, and its points where one of the first 8 numbers is at an end, as texts. For other spaces
        None: their actions have no list.

        Raises: ContractError, for a mask of another shape.
        """
        if self._actions is not None:
            allowed = legal_places(self.acts, self._actions, mask, where=self._where)
            return list(range(len(self._actions))) if allowed is None else allowed
        if not isinstance(self.acts, spaces.Box):
            return None
        low, high = bounds(self.acts)
        middle = (low + high) / 2
        found = [middle]
        for place in range(min(middle.size, 8)):
            for end in (low, high):
                point = middle.copy()
                point.flat[place] = end.flat[place]
                found.append(point)
        return [" ".join(f"{number:.2f}" for number in point.flat) for point in found]

    # ---- acting -------------------------------------------------------------------------------------------
    @property
    def how(self) -> str:
        """What an action is, in words."""
        return f"the number of one of {self.count} actions, from 0" if self.count else how_to_write(self.acts)

    def read(self, value: Any, legal: Sequence[Any] | None) -> Read | None:
        """The action that an answer stands for; None if it cannot be read."""
        if self._actions is None:
            action = in_space(self.acts, value)
            return None if action is None else Read(action, True)
        if isinstance(value, str):
            word = " ".join(value.lower().split())
            if word in self.names:
                value = self.names.index(word)
            else:
                value = int(word) if word.isdecimal() else in_space(self.acts, word)
        if isinstance(value, np.ndarray) and isinstance(self.acts, spaces.MultiDiscrete):
            value = next((place for place, one in enumerate(self._actions) if np.array_equal(one, value)), None)
        elif isinstance(value, np.ndarray):
            value = value.item() if value.size == 1 else None
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            return None
        known = int(value) < len(self._actions)
        return Read(self._actions[int(value)] if known else None, known and int(value) in (legal or ()))

    def stand_in(self, legal: Sequence[Any] | None) -> Any:
        """The action in place of an unreadable or illegal answer: the first legal one, or the simplest of its space."""
        return simplest(self.acts) if self._actions is None else self._actions[int((legal or (0,))[0])]


def _told(vector: np.ndarray) -> str:
    """The numbers of a vector as text. Of a long vector of zeros and ones, such as a board, the places of the ones."""
    if len(vector) > LONG and np.isin(vector, (0, 1)).all():
        return f"ones at {' '.join(str(place) for place in np.flatnonzero(vector)) or 'none'} of {len(vector)}"
    return " ".join(_written(number) for number in vector)


def _written(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e6 else f"{number:.2f}"
