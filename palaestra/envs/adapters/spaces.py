"""Spaces of Gymnasium, as agents that read and write meet them: values as words, answers as values, and action masks.

Adapters of Gymnasium and PettingZoo use it.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from palaestra.envs.kit.leniency import read_leniently
from palaestra.errors import ContractError

Space = spaces.Space[Any]
PLAIN = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
USUAL = frozenset(string.ascii_letters + string.digits)  # the characters of a Text space that names none
MASK, OBSERVATION = "action_mask", "observation"
MOST = 256  # actions of a MultiDiscrete space that get numbers of their own


# ---- which spaces -----------------------------------------------------------------------------------------
def is_readable(space: Space) -> bool:
    """Whether agents can read its values, and write them as actions."""
    return all(isinstance(one, PLAIN) for one in _leaves(space))


def has_text(space: Space) -> bool:
    """Whether a part of its values is a text."""
    return any(isinstance(one, spaces.Text) for one in _leaves(space))


def is_exact(space: Space) -> bool:
    """Whether equal words mean equal values: no part has real numbers, which words round."""
    return not any(isinstance(one, spaces.Box) and one.dtype.kind == "f" for one in _leaves(space))


def size_of(space: Space) -> int | None:
    """The length of its values as vectors. None: a part is a text, or the length is not fixed."""
    if has_text(space) or not space.is_np_flattenable:
        return None
    return int(spaces.flatdim(space)) or None


def _leaves(space: Space) -> list[Space]:
    """The spaces that it consists of; itself, if it has no parts that this module knows."""
    return [leaf for part in _parts(space) for leaf in _leaves(part)] if _parts(space) else [space]


def _parts(space: Space) -> Sequence[Space]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return list(space.spaces)
    return [space.feature_space] if isinstance(space, spaces.Sequence) else []


# ---- values as words --------------------------------------------------------------------------------------
def in_words(space: Space, value: Any) -> str:
    """A value as text. Texts stay as they are, and the parts of a Dict keep their names.

    >>> in_words(spaces.Dict({"hint": spaces.Text(9), "left": spaces.Discrete(4)}), {"hint": "go on", "left": 3})
    'hint: go on\\nleft: 3'
    """
    if isinstance(space, spaces.Dict):
        return "\n".join(_named(key, in_words(inner, value[key])) for key, inner in space.spaces.items())
    if isinstance(space, spaces.OneOf):
        number, chosen = value
        return in_words(space.spaces[int(number)], chosen)
    if isinstance(space, spaces.Tuple):
        return "\n".join(in_words(inner, one) for inner, one in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Sequence):
        return "\n".join(in_words(space.feature_space, one) for one in _items(space, value))
    if isinstance(value, str):
        return value
    numbers = np.asarray(value).reshape(-1)
    real = numbers.dtype.kind == "f"
    return " ".join(f"{number:.2f}" if real else str(int(number)) for number in numbers)


def _named(key: str, words: str) -> str:
    """`key: words`, with words of several lines below the key."""
    return f"{key}:\n{words}" if "\n" in words else f"{key}: {words}"


def _items(space: spaces.Sequence, value: Any) -> Sequence[Any]:
    if not space.stack:
        return value  # type: ignore[no-any-return]
    return list(iterate(space.stacked_feature_space, value))


# ---- answers as values ------------------------------------------------------------------------------------
def in_space(space: Space, answer: Any) -> Any:
    """The value of a space that an answer means, or None if it means none.

    Args:
        answer: the value, or a text. Numbers stand with spaces between them; a Dict or a Tuple is written as JSON. The
            numbers of a Box are clipped to its bounds.
    """
    if isinstance(space, spaces.Text):
        return read_leniently(answer, lambda text: _text(space, text)) if isinstance(answer, str) else None
    if isinstance(space, spaces.Box):
        return _point(space, answer)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _composed(space, _document(answer) if isinstance(answer, str) else answer)
    numbers = _whole_numbers(answer)
    if numbers is None:
        return None
    if isinstance(space, spaces.Discrete):
        inside = numbers.size == 1 and space.start <= numbers[0] < space.start + space.n
        return space.dtype.type(numbers[0]) if inside else None
    if numbers.size != int(np.prod(space.shape or ())):
        return None
    chosen = numbers.reshape(space.shape)
    return chosen.astype(space.dtype) if space.contains(chosen.astype(space.dtype)) else None


def _text(space: spaces.Text, text: str) -> str | None:
    """The text, if the space has it. The usual characters of Gymnasium lack even the space, so they bind nobody."""
    fits = space.min_length <= len(text) <= space.max_length
    allowed = space.character_set == USUAL or set(text) <= space.character_set
    return text if fits and allowed else None


def _point(space: spaces.Box, answer: Any) -> np.ndarray | None:
    try:
        given = answer.replace(",", " ").split() if isinstance(answer, str) else answer
        numbers = np.asarray(given, np.float64).reshape(space.shape)
    except (TypeError, ValueError):
        return None
    return np.clip(numbers, space.low, space.high).astype(space.dtype) if np.isfinite(numbers).all() else None


def _composed(space: spaces.Dict | spaces.Tuple, answer: Any) -> Any:
    if isinstance(space, spaces.Dict):
        if not isinstance(answer, Mapping) or answer.keys() != space.spaces.keys():
            return None
        named = {key: in_space(inner, answer[key]) for key, inner in space.spaces.items()}
        return None if any(one is None for one in named.values()) else named
    if isinstance(answer, str) or not isinstance(answer, Sequence) or len(answer) != len(space.spaces):
        return None
    items = tuple(in_space(inner, one) for inner, one in zip(space.spaces, answer, strict=True))
    return None if any(one is None for one in items) else items


def _document(text: str) -> Any:
    """The first JSON object or list in a text; None without one, or if an object has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    start = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=0)
    try:
        return json.JSONDecoder(object_pairs_hook=once).raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def _whole_numbers(answer: Any) -> np.ndarray | None:
    """The whole numbers of an answer in one dimension, or None if it has others."""
    try:
        if isinstance(answer, str):
            return np.array([int(word) for word in answer.replace(",", " ").split()], np.int64)
        numbers = np.asarray(answer).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers.astype(np.int64) if numbers.dtype.kind in "iu" else None


def simplest(space: Space) -> Any:
    """An action in place of one that cannot be read: the smallest one, the shortest text, the middle of a Box."""
    if isinstance(space, spaces.Dict):
        return {key: simplest(inner) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(simplest(inner) for inner in space.spaces)
    if isinstance(space, spaces.Text):
        return min(space.character_set, default="") * space.min_length
    if isinstance(space, spaces.Box):
        low, high = bounds(space)
        return ((low + high) / 2).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(space.start)
    start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    return np.zeros(space.shape or (), space.dtype) + np.asarray(start, space.dtype)


def bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of a Box in float64, with -1 and 1 in place of infinite ones."""
    low = np.where(np.isfinite(space.low), space.low, -1.0)
    return low.astype(np.float64), np.where(np.isfinite(space.high), space.high, 1.0).astype(np.float64)


def how_to_write(space: Space) -> str:
    """What an action of this space is, for the instruction of an agent."""
    if isinstance(space, spaces.Text):
        return f"a text of at most {space.max_length} characters"
    if isinstance(space, spaces.Discrete):
        return f"a whole number from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, spaces.Dict):
        listed = ", ".join(f'"{key}" ({how_to_write(inner)})' for key, inner in space.spaces.items())
        return f"a JSON object with {listed}"
    if isinstance(space, spaces.Tuple):
        return f"a JSON list of {', '.join(how_to_write(inner) for inner in space.spaces)}"
    count = int(np.prod(space.shape or (1,)))
    if isinstance(space, spaces.MultiDiscrete):
        most = " ".join(str(one) for one in (space.start + space.nvec - 1).reshape(-1))
        return f"{count} whole numbers with spaces between them, at most {most}"
    if isinstance(space, spaces.MultiBinary):
        return f"{count} times 0 or 1 with spaces between them"
    return f"{count} numbers with spaces between them"


# ---- actions with numbers, and masks ----------------------------------------------------------------------
class Visible:
    """What agents see of an observation space: `action_mask` of a Dict is no observation.

    Args:
        acts: the action space. Where its actions have no numbers, nothing is a mask.

    Attributes:
        space: without the mask. If only `observation` is left beside it, the space of that.
    """

    def __init__(self, space: Space, acts: Space) -> None:
        self.space, self._masked, self._alone = space, False, False
        if isinstance(space, spaces.Dict) and MASK in space.spaces and numbered(acts) is not None:
            rest = {key: inner for key, inner in space.spaces.items() if key != MASK}
            self._masked, self._alone = True, rest.keys() == {OBSERVATION}
            self.space = rest[OBSERVATION] if self._alone else spaces.Dict(rest)

    def split(self, value: Any) -> tuple[Any, Any]:
        """An observation as what agents see, and the action mask or None."""
        if not self._masked:
            return value, None
        mask = value[MASK]
        return value[OBSERVATION] if self._alone else {key: value[key] for key in value if key != MASK}, mask


def numbered(space: Space) -> list[Any] | None:
    """The actions of a Discrete space, or of a MultiDiscrete space with at most `MOST` of them; None for others."""
    if isinstance(space, spaces.Discrete):
        return [space.dtype.type(space.start + index) for index in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete) and np.prod(space.nvec, dtype=float) <= MOST:
        flat = np.ndindex(*map(int, space.nvec.reshape(-1)))
        return [(np.reshape(place, space.shape) + space.start).astype(space.dtype) for place in flat]
    return None


def legal_places(acts: Space, actions: Sequence[Any], mask: Any, *, where: str) -> list[int] | None:
    """The places in `numbered(acts)` that a mask allows; None, if there is no mask or it allows nothing.

    Args:
        actions: `numbered(acts)`. mask: for Discrete one number for each action, for MultiDiscrete one such array for
            each of its numbers, as `sample` of the space takes it.

    Raises: ContractError, for a mask of another shape.
    """
    if mask is None:
        return None
    counts = acts.nvec.reshape(-1).tolist() if isinstance(acts, spaces.MultiDiscrete) else [len(actions)]
    try:
        masks = mask if isinstance(acts, spaces.MultiDiscrete) else [mask]
        allowed = [np.asarray(one).astype(bool).reshape(count) for one, count in zip(masks, counts, strict=True)]
    except (TypeError, ValueError):
        raise ContractError(
            where=where,
            what=f"its action mask does not have {' and '.join(map(str, counts))} numbers.",
            remedy="Give one number for each action: 1, if it is legal, and otherwise 0.",
        ) from None
    # The last number of a MultiDiscrete space changes first, as in `numbered`.
    return np.flatnonzero(functools.reduce(np.logical_and.outer, allowed).reshape(-1)).tolist() or None
