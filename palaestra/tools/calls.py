"""What the call formats share: the result of reading a text, a strict JSON reader, and how thoughts are skipped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.data import ToolCall

DEEPEST = 40  # most levels of nested lists and objects
LEFT_OVER = re.compile(r"[\s\[\],;]*|\s*```\w*\s*")  # what remains of a list of calls, or of a code fence around them
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape of one half of a character
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # no text that can be encoded has one alone
THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a call format reads from an agent's text.

    Attributes:
        calls: calls in the order of the text. If any of them is unreadable, there are none, so that a text is never
            carried out in part.
        said: the text around the calls.
        fault: what could not be read and how to write it. None: the text was readable, even if it contains no call.
    """

    calls: tuple[ToolCall, ...] = ()
    said: str = ""
    fault: str | None = None


class Unreadable(Exception):
    """A text that was meant as a call cannot be read. The message says why, and the agent reads it."""


def loads(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and the position where it ends.

    Raises: Unreadable, for invalid JSON, a key that occurs twice in an object, a number that is not finite, half of
        a character, or more than DEEPEST levels of lists and objects.
    """
    try:
        value, end = DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise Unreadable(f"this is no JSON: {error.msg.lower()} at {near(text, error.pos)}") from None
    except RecursionError:
        raise Unreadable(f"lists and objects stand more than {DEEPEST} deep in each other") from None
    except ValueError as error:  # Python refuses numbers with thousands of digits
        raise Unreadable(f"this is no JSON: {str(error)[:80]}") from None
    if _depth(value) > DEEPEST:
        raise Unreadable(f"lists and objects stand more than {DEEPEST} deep in each other")
    if HALF.search(text, start, end) and HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        raise Unreadable("an escape such as \\ud83d is half of a character")
    return value, end


def call_of(value: Any) -> ToolCall:
    """The call in an object `{"name": …, "arguments": {…}}`. Raises: Unreadable."""
    if not isinstance(value, dict):
        raise Unreadable("a call is an object with `name` and `arguments`")
    strangers = [key for key in value if key not in ("name", "arguments", "id")]
    if "name" not in value:
        raise Unreadable("the call has no `name`")
    if strangers:
        raise Unreadable(f"a call has `name` and `arguments` only, found {strangers[0][:40]!r}; arguments go inside")
    if not isinstance(value["name"], str):
        raise Unreadable("`name` must be a text")
    if not isinstance(value.get("arguments", {}), dict):
        raise Unreadable("`arguments` must be an object")
    return ToolCall(name=value["name"], arguments=value.get("arguments", {}), id=str(value.get("id", "")))


def dumps(value: Any) -> str:
    """A JSON value on one line. A `<think>` in it is escaped, so that no reader takes it for a tag."""
    return json.dumps(value, ensure_ascii=False).replace(THINK, "\\u003cthink>")


def outside_thoughts(text: str) -> list[tuple[int, int]]:
    """Start and end of each part of a text outside `<think>…</think>`. A tag that is never closed hides the rest."""
    stretches, start = [], 0
    while (opened := text.find(THINK, start)) >= 0:
        stretches.append((start, opened))
        closed = text.find(THOUGHT, opened)
        if closed < 0:
            return stretches
        start = closed + len(THOUGHT)
    return [*stretches, (start, len(text))]


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text outside these spans, without the commas, brackets and code fences around them."""
    if not spans:
        return text.strip()
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    lines = "\n".join(text[end:start] for end, start in zip(ends, starts, strict=True)).splitlines()
    return "\n".join(line for line in lines if not LEFT_OVER.fullmatch(line)).strip()


def without_last(text: str) -> str:
    """A text before a call without its last lines, if they are empty or have only what stands around calls."""
    lines = text.split("\n")
    while lines and LEFT_OVER.fullmatch(lines[-1]):
        lines.pop()
    return "\n".join(lines)


def between(text: str, opening: str, closing: str) -> list[str]:
    """What stands between each opening and the next closing.

    Text after the last closing is left out first: a pattern would read it to its end once for each opening.

    >>> between("<a>1</a> <a>2 <a>", "<a>", "</a>")
    ['1']
    """
    whole = text[: text.rfind(closing) + len(closing)] if closing in text else ""
    return re.findall(f"{re.escape(opening)}(.*?){re.escape(closing)}", whole, re.DOTALL)


def near(text: str, position: int) -> str:
    """The text at a position, for messages."""
    piece = text[position : position + 20]
    return repr(piece) if piece else "the end"


def _depth(value: Any) -> int:
    """Number of levels of nested lists and objects. Counting stops above DEEPEST."""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, list | dict)
        ]
    return depth


def _no_doubles(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"the key {key[:40]!r} stands twice in one object")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Unreadable(f"{text[:20]} is no finite number")
    return number


DECODER = json.JSONDecoder(object_pairs_hook=_no_doubles, parse_float=_finite, parse_constant=_finite)
