"""Spaces of PettingZoo agents: turns what an agent sees into an observation, and its answer into an action."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.data import Observation
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
        self.agent, self.acts = agent, acts
        self.seen = seen["observation"] if isinstance(seen, spaces.Dict) and "observation" in seen.spaces else seen
        if not isinstance(acts, spaces.Discrete | spaces.Box):
            raise RecipeError(
                where=where,
                what=f"its action space is {acts}.",
                remedy="Wrap the environment so that it has a Discrete or a Box action space.",
            )
        self.count: int | None = int(acts.n) if isinstance(acts, spaces.Discrete) else None
        if names and len(names) != self.count:
            raise RecipeError(
                where=where,
                what=f"`names` has {len(names)} names, and the agent has {self.count or 'no discrete'} actions.",
                remedy="Name each action once, in the order of their numbers, or leave `names` out.",
            )
        self.names = tuple(names)
        shape = getattr(self.seen, "shape", None) or ()
        self.image = getattr(self.seen, "dtype", None) == np.uint8 and len(shape) == 3 and shape[-1] in CHANNELS
        if not self.image and not self.seen.is_np_flattenable:
            raise RecipeError(
                where=where,
                what=f"its observation space {self.seen} has no vector of fixed size.",
                remedy="Wrap the environment so that it has a space of Box, Discrete, or a Tuple or Dict of these.",
            )
        self.size: int | None = None if self.image else int(spaces.flatdim(self.seen))

    # ---- seeing -------------------------------------------------------------------------------------------
    def observe(self, raw: Any, info: Any, size: int | None, *, lead: str) -> tuple[Observation, list[Any]]:
        """What the agent sees, and its legal actions.

        Args:
            raw: the environment's observation. info: the environment's info for this agent.
            size: of the vector; shorter vectors end with zeros. None: no vector.
            lead: the beginning of the text.

        Returns: the observation, and the legal actions as `legal` gives them.
        """
        found = raw["observation"] if isinstance(raw, dict) and "observation" in raw else raw
        mask = raw.get("action_mask") if isinstance(raw, dict) else None
        mask = info.get("action_mask") if mask is None and isinstance(info, dict) else mask
        legal = self.legal(mask)
        if self.image:
            picture = np.asarray(found, np.uint8)
            text = f"{lead}an image of {picture.shape[1]} by {picture.shape[0]}"
            return Observation(text=text, image=picture, legal=legal), legal
        vector = np.nan_to_num(np.asarray(spaces.flatten(self.seen, found), np.float32), posinf=1e6, neginf=-1e6)
        text = f"{lead}{_told(vector)}"
        if self.names:
            text += f"\nactions: {', '.join(self.names[index] for index in legal)}"
        padded = np.zeros(size or len(vector), np.float32)
        padded[: len(vector)] = vector
        key = None
        if not np.issubdtype(getattr(self.seen, "dtype", None) or np.int64, np.floating):
            digest = hashlib.sha256(vector.tobytes() + repr(legal).encode())
            key = f"{self.agent}/{digest.hexdigest()[:16]}"
        return Observation(text=text, vector=padded if size else None, legal=legal, state_key=key), legal

    def legal(self, mask: Any) -> list[Any]:
        """The indices of the discrete actions that the mask allows; all, if it allows none.

        For a Box: its middle, and its points where one of the first 8 numbers is at an end, as texts.
        """
        if self.count is not None:
            return [index for index in range(self.count) if mask is None or mask[index]] or list(range(self.count))
        low, high = self._bounds()
        middle = (low + high) / 2
        found = [middle]
        for place in range(min(middle.size, 8)):
            for end in (low, high):
                point = middle.copy()
                point.flat[place] = end.flat[place]
                found.append(point)
        return [" ".join(f"{number:.2f}" for number in point.flat) for point in found]

    # ---- acting -------------------------------------------------------------------------------------------
    def read(self, value: Any, legal: Sequence[Any]) -> Read | None:
        """The action that an answer stands for; None if it cannot be read."""
        if self.count is None:
            return self._point(value)
        if isinstance(value, str):
            word = " ".join(value.lower().split())
            if word in self.names:
                value = self.names.index(word)
            else:
                value = int(word) if word.isdecimal() else None
        elif isinstance(value, np.ndarray):
            value = value.item() if value.size == 1 else None
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            return None
        return Read(self.from_index(int(value)), int(value) in legal)

    def from_index(self, index: int) -> Any:
        """The action of a discrete space at an index; a space may start at another number than 0."""
        return np.int64(index + int(self.acts.start))  # type: ignore[attr-defined]

    def stand_in(self, legal: Sequence[Any]) -> Any:
        """The action in place of an unreadable or illegal answer: the first legal one, or the middle of a Box."""
        if self.count is not None:
            return self.from_index(int(legal[0]))
        low, high = self._bounds()
        return ((low + high) / 2).astype(self.acts.dtype)

    def _point(self, value: Any) -> Read | None:
        shape, kind = self.acts.shape, self.acts.dtype
        try:
            given = value.replace(",", " ").split() if isinstance(value, str) else value
            numbers = np.asarray(given, np.float64).reshape(shape)
        except (TypeError, ValueError):
            return None
        if not np.isfinite(numbers).all():
            return None
        return Read(np.clip(numbers, self.acts.low, self.acts.high).astype(kind), True)  # type: ignore[attr-defined]

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        box: Any = self.acts
        finite_low = np.where(np.isfinite(box.low), box.low, -1.0)
        return finite_low.astype(np.float64), np.where(np.isfinite(box.high), box.high, 1.0).astype(np.float64)


def _told(vector: np.ndarray) -> str:
    """The numbers of a vector as text. Of a long vector of zeros and ones, such as a board, the places of the ones."""
    if len(vector) > LONG and np.isin(vector, (0, 1)).all():
        return f"ones at {' '.join(str(place) for place in np.flatnonzero(vector)) or 'none'} of {len(vector)}"
    return " ".join(_written(number) for number in vector)


def _written(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e6 else f"{number:.2f}"
