"""The one rule for what enters a trajectory: what no file, tokenizer or terminal can hold is replaced and counted.

Texts of environments, policies, tools and errors, values of `info`, and names pass the functions of this module. What
is good does not change by one byte.

    half of a character (a lone surrogate)        U+FFFD. Two halves that belong together become their character
    NUL and other control characters              their picture, such as ␀ for NUL and ␛ for escape; U+FFFD from U+0080
                                                  on. Tab, line feed, form feed, carriage return and U+0085 stay
    a text of more than LONGEST characters        its beginning, with the number of characters that are left out
    a value that JSON lacks, such as an object    its type in angle brackets, such as `<socket>`
    bytes                                         their text
    a list or a mapping that contains itself, or
    that is deeper than DEEPEST, or the values
    after the first MOST of an entry              `<cycle>`, `<too deep>`, `<too many values>`
    a number of more than a thousand bits         `<a number of about 400 digits>`

Sets, paths, enumerations, tensors and dataclasses become the JSON values that files have for them, and keys become
texts. This is not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from palaestra.data.interaction import Action, Observation, StepResult, ToolCall
from palaestra.errors import ContractError, ends_run

LONGEST = 4_000_000  # characters of one text: more than a million tokens
DEEPEST = 100  # levels of lists and mappings
MOST = 200_000  # values of one entry
BITS = 1000  # of a whole number; a float holds 1023
CHARACTERS, CUT, VALUES = "characters", "cut", "values"  # what is counted

Counts = Counter[str]  # how many characters and values were replaced, and how many texts were cut

_MARK = 64  # characters that are kept free for the mark of a text that is cut
_CONTROL = bytes({*range(32), 127} - {9, 10, 12, 13})
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BAD = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_PLAIN_KEYS = (bool, int, float, tuple, np.number, np.bool_, type(None))


# ---- texts ------------------------------------------------------------------------------------------------
def clean_text(text: str, counts: Counts | None = None, *, most: int = LONGEST) -> str:
    """A text that files, tokenizers and terminals can hold. A good text is returned as it is.

    Args:
        counts: counts what is replaced. most: the most characters, at least 100.

    >>> clean_text("a\\x00b"), clean_text("a\\ud800b"), clean_text("\\ud83d\\ude00") == "\\U0001f600"
    ('a␀b', 'a\ufffdb', True)
    """
    if len(text) > most:
        _count(counts, CUT)
        text = f"{text[: most - _MARK]}… {len(text) - most + _MARK:,} more characters"
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return _replaced(text, counts)
    if len(raw.translate(None, _CONTROL)) == len(raw) and (b"\xc2" not in raw or _BAD.search(text) is None):
        return text if type(text) is str else str.__str__(text)
    return _replaced(text, counts)


def _replaced(text: str, counts: Counts | None) -> str:
    joined = _PAIR.sub(lambda pair: pair.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    cleaned, number = _BAD.subn(lambda bad: _picture(ord(bad.group())), joined)
    _count(counts, CHARACTERS, number)
    return cleaned


def _picture(code: int) -> str:
    """The character that stands for a control character or for half of a character."""
    return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else "\ufffd"


def shown(value: Any, counts: Counts | None = None, *, most: int = 100) -> str:
    """The text of a value that is named in an error or a key, also where the value refuses to have one."""
    try:
        text = str(value)
    except BaseException as error:  # an integer of 5,000 digits, or code of the value's own
        if ends_run(error):
            raise
        _count(counts, VALUES)
        text = f"<{type(value).__name__}>"
    return clean_text(text, counts, most=most)


def _count(counts: Counts | None, what: str, number: int = 1) -> None:
    if counts is not None and number:
        counts[what] += number


# ---- values -----------------------------------------------------------------------------------------------
def clean_value(value: Any, counts: Counts | None = None) -> Any:
    """A value that files can hold: texts, numbers, arrays, and lists, tuples and dicts of these.

    Lists and mappings are copied, so that what their owner puts into them later stays outside.

    Args:
        counts: counts what is replaced.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is str:
        return clean_text(value, counts)
    return _Values(counts).clean(value, 0)


@dataclass(slots=True)
class _Values:
    """Cleans one entry.

    Attributes:
        left: how many further values it may have. path: identities of the containers around the present value.
    """

    counts: Counts | None
    left: int = MOST
    path: set[int] = field(default_factory=set)

    def clean(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is str:
            return clean_text(value, self.counts)
        self.left -= 1
        if self.left < 0:
            return self.mark("too many values")
        try:
            return self.other(value, depth)
        except RecursionError:
            return self.mark("too deep")
        except BaseException as error:  # the value has code of its own
            if ends_run(error):
                raise
            return self.mark(kind.__name__)

    def mark(self, what: str) -> str:
        """The text in place of a value, which is counted."""
        _count(self.counts, VALUES)
        return f"<{clean_text(what, most=100)}>"

    def other(self, value: Any, depth: int) -> Any:
        """A value that is no plain text, truth value, float or None."""
        if isinstance(value, str):
            return clean_text(value, self.counts)
        if isinstance(value, Enum):
            return self.clean(value.value, depth)
        if isinstance(value, int):
            return int(value) if value.bit_length() <= BITS else self.long_number(int(value))
        if isinstance(value, float) and not isinstance(value, np.generic):
            return float(value)
        if isinstance(value, np.ndarray | np.generic):
            return self.array(value, depth)
        if isinstance(value, Mapping | Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
            return self.container(value, depth)
        if isinstance(value, bytes | bytearray):
            _count(self.counts, VALUES)
            return clean_text(bytes(value[:LONGEST]).decode("utf-8", errors="replace"))
        if isinstance(value, PurePath):
            return clean_text(str(value), self.counts)
        if is_dataclass(value) and not isinstance(value, type):
            return self.container({one.name: getattr(value, one.name) for one in fields(value)}, depth)
        if callable(getattr(value, "tolist", None)):  # tensors
            return self.clean(value.tolist(), depth)
        return self.mark(type(value).__name__)

    def long_number(self, value: int) -> str:
        return self.mark(f"a number of about {int(value.bit_length() * 0.30103):,} digits")

    def array(self, value: np.ndarray | np.generic, depth: int) -> Any:
        """Numbers stay an array; texts, objects and dates become lists."""
        if value.dtype.kind in "biuf":
            return value
        if value.dtype.kind in "OUS":
            return self.clean(value.tolist(), depth)
        return (
            self.clean(value.astype(str).tolist(), depth) if value.dtype.kind in "mM" else self.mark(str(value.dtype))
        )

    def container(self, value: Any, depth: int) -> Any:
        if id(value) in self.path:
            return self.mark("cycle")
        if depth >= DEEPEST:
            return self.mark("too deep")
        self.path.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self.mapping(value, depth)
            items = []
            for item in value:
                items.append(self.clean(item, depth + 1))
                if self.left < 0:
                    break  # the mark of the rest is there
            if isinstance(value, Set):
                items.sort(key=lambda item: (type(item).__name__, item if isinstance(item, str) else repr(item)))
            if not isinstance(value, tuple):
                return items
            same = type(value) is tuple and all(a is b for a, b in zip(value, items, strict=False))
            return value if same and len(items) == len(value) else tuple(items)
        finally:
            self.path.discard(id(value))

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for given, item in value.items():
            key = first = self.key(given)
            number = 1
            while key in cleaned:  # 1 and "1"
                number += 1
                key = f"{first} ({number})"
            _count(self.counts, VALUES, int(number > 1))
            cleaned[key] = self.clean(item, depth + 1)
            if self.left < 0:
                break
        return cleaned

    def key(self, given: Any) -> str:
        if isinstance(given, str):
            return clean_text(given, self.counts)
        if isinstance(given, Enum):
            return self.key(given.value)
        if isinstance(given, _PLAIN_KEYS):
            return shown(given, self.counts, most=LONGEST)
        return self.mark(type(given).__name__)


# ---- what agents see and do -------------------------------------------------------------------------------
def clean_observation(seen: Any, counts: Counts) -> Observation:
    """An observation that can be stored. A good one is returned as it is.

    Raises: ContractError, for a field of another type, or a vector that is not finite or has not one dimension.
    """
    if not isinstance(seen, Observation):
        raise _wrong("observation", seen, "an Observation")
    changed: dict[str, Any] = {}
    for name in ("text", "state_key", "instruction", "manual"):
        given = getattr(seen, name)
        if given is not None:
            if not isinstance(given, str):
                raise _wrong(f"observation.{name}", given, "a text")
            if (cleaned := clean_text(given, counts)) is not given:
                changed[name] = cleaned
    if seen.vector is not None:
        vector = _vector(seen.vector)
        if vector is not seen.vector:
            changed["vector"] = vector
    if seen.legal is not None:
        legal = _legal(seen.legal, counts)
        if legal is not seen.legal:
            changed["legal"] = legal
    if seen.image is not None:
        Observation.__post_init__(seen)
    for name in ("messages", "tools"):
        given = getattr(seen, name)
        if given is not None:
            changed[name] = _records(given, f"observation.{name}", counts)
    return replace(seen, **changed) if changed else seen


def _vector(given: Any) -> np.ndarray:
    vector = given if isinstance(given, np.ndarray) else _as_array(given)
    if vector.dtype.kind not in "biuf" or vector.ndim != 1:
        raise ContractError(
            where="observation.vector",
            what=f"the vector of an observation has the shape {vector.shape} and the type {vector.dtype}; it must have "
            "one dimension, and numbers.",
            remedy="Give `np.asarray(values, np.float32).reshape(-1)`.",
        )
    if vector.dtype.kind == "f" and not np.isfinite(vector).all():
        raise ContractError(
            where="observation.vector", what="the vector of an observation has a number that is not finite."
        )
    return vector


def _as_array(given: Any) -> np.ndarray:
    try:
        return np.asarray(given, np.float32)
    except Exception:
        raise _wrong("observation.vector", given, "an array of numbers") from None


def _legal(given: Any, counts: Counts) -> Any:
    if isinstance(given, np.ndarray | range):
        return given if isinstance(given, range) or given.dtype.kind in "iub" else clean_value(given, counts)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _wrong("observation.legal", given, "a list of texts or of indices")
    texts = [one for one in given if type(one) is str]
    if len(texts) == len(given):
        together, found = "".join(texts), Counter[str]()
        if clean_text(together, found) is together and not found:
            return given
    return clean_value(given, counts)


def _records(given: Any, where: str, counts: Counts) -> Any:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(one, Mapping) for one in given):
        raise _wrong(where, given, "a list of mappings")
    if where.endswith("messages") and not all(isinstance(one.get("role"), str) for one in given):
        raise ContractError(where=where, what="a message of an observation has no `role`.")
    return clean_value(given, counts)


def clean_action(action: Any, counts: Counts) -> Action:
    """An action that can be stored. A good one is returned as it is.

    Raises: ContractError, for a value that is no Action, or a field of another type.
    """
    if not isinstance(action, Action):
        raise _wrong("action", action, "an Action")
    changed: dict[str, Any] = {}
    for name in ("text", "reply"):
        given = getattr(action, name)
        if given is not None:
            if not isinstance(given, str):
                raise _wrong(f"action.{name}", given, "a text")
            if (cleaned := clean_text(given, counts if name == "text" else None)) is not given:
                changed[name] = cleaned
    if action.value is action.text:
        changed |= {"value": changed["text"]} if "text" in changed else {}
    elif (value := clean_value(action.value, counts)) is not action.value:
        changed["value"] = value
    if action.tool_calls:
        changed["tool_calls"] = tuple(_clean_call(call, counts) for call in action.tool_calls)
    tokens = action.tokens
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise _wrong("action.tokens", tokens, "an array of ids with one dimension")
    return replace(action, **changed) if changed else action


def _clean_call(call: Any, counts: Counts) -> ToolCall:
    if not isinstance(call, ToolCall) or not isinstance(call.name, str):
        raise _wrong("action.tool_calls", call, "a ToolCall with a name")
    return ToolCall(
        name=clean_text(call.name, counts), arguments=clean_value(call.arguments, counts), id=clean_text(str(call.id))
    )


# ---- what environments return -----------------------------------------------------------------------------
def clean_result(result: Any) -> StepResult:
    """What `reset` or `step` returned, in a form that can be stored. Rewards become floats. `replaced` is set.

    Raises: ContractError, for a value that is no StepResult, or a field of another type.
    """
    if not isinstance(result, StepResult):
        raise ContractError(
            where="environment",
            what=f"`step` and `reset` must return a StepResult, found {type(result).__name__}.",
            remedy="Run palaestra.testing.check_environment on it.",
        )
    if isinstance(result.replaced, Counter):
        return result
    counts: Counts = Counter()
    for name in ("observations", "last", "rewards", "info"):
        if not isinstance(getattr(result, name), Mapping):
            raise _wrong(name, getattr(result, name), "a mapping")
    info = clean_value(result.info, counts) if result.info else {}
    if not isinstance(info, dict):
        raise ContractError(where="info", what=f"`info` is a {type(result.info).__name__}, which cannot be read.")
    return StepResult(
        observations={agent: clean_observation(seen, counts) for agent, seen in result.observations.items()},
        rewards={agent: _reward(agent, amount) for agent, amount in result.rewards.items()},
        terminated=_agents("terminated", result.terminated),
        truncated=_agents("truncated", result.truncated),
        last={agent: clean_observation(seen, counts) for agent, seen in result.last.items()} if result.last else {},
        info=info,
        replaced=counts,
    )


def _reward(agent: Any, amount: Any) -> float:
    """A reward as a number. Scalars of numpy and torch are numbers, texts are none."""
    if type(amount) is float:
        return amount
    number = amount
    if not isinstance(amount, int | float) and callable(getattr(amount, "item", None)) and np.ndim(amount) == 0:
        number = amount.item()
    if not isinstance(number, int | float):
        raise ContractError(
            where="rewards",
            what=f"the reward of {shown(agent)} is a {type(amount).__name__}; it must be a number.",
            remedy="Give a float.",
        )
    try:
        return float(number)
    except OverflowError:  # a whole number of hundreds of digits
        return float("inf")


def _agents(name: str, given: Any) -> frozenset[str]:
    if type(given) is frozenset:
        return given
    if isinstance(given, str) or not isinstance(given, Set | Sequence):
        raise _wrong(name, given, "a set of agents")
    return frozenset(given)


def _wrong(what: str, given: Any, wanted: str) -> ContractError:
    return ContractError(where=what, what=f"`{what}` is a {type(given).__name__}; it must be {wanted}.")
