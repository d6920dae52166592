"""Elements of pages as lines of text, and gestures as words or calls: how both are written and read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["click", "type", "key", "scroll", "stop"]
Box = tuple[int, int, int, int]  # left, top, width, height
KEYS = ("enter", "tab", "space", "backspace", "escape", "up", "down", "left", "right")
DIRECTIONS = ("up", "down")
CALL = re.compile(r"(click|type|key|scroll|stop)\((.*)\)", re.DOTALL | re.IGNORECASE)
LONGEST_TEXT = 200  # characters of a text that is typed or answered
FOCUS = 0  # in place of an element's number: whatever has the focus


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """Something on a page: `[3] field 'city' (8,40,120,20) rome`."""

    id: int
    role: str
    text: str
    box: Box
    value: str | None = None

    @property
    def center(self) -> tuple[int, int]:
        """The point where a click hits it."""
        left, top, width, height = self.box
        return left + width // 2, top + height // 2

    def line(self, *, ids: bool = True, boxes: bool = True) -> str:
        """As agents read it; a field without content has no value."""
        box = "({},{},{},{})".format(*self.box) if boxes else ""
        return " ".join(
            piece
            for piece in (f"[{self.id}]" if ids else "", self.role, f"'{self.text}'", box, self.value or "")
            if piece
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gesture:
    """One act: a click at an element or a point, a text for an element, a key, a scroll, the end with an answer."""

    kind: Kind
    id: int | None = None
    point: tuple[int, int] | None = None
    text: str = ""  # typed or answered; the name of a key; the direction of a scroll

    def write(self, *, calls: bool = False) -> str:
        """`type 3 new york`, or as a call `type(3,new york)`."""
        place = (self.id,) if self.id is not None else self.point or ()
        pieces = [str(number) for number in place] + ([self.text] if self.text else [])
        return f"{self.kind}({','.join(pieces)})" if calls else " ".join([self.kind, *pieces])


def read(said: object) -> Gesture | None:
    """The gesture that a text means, written as words or as a call; None if it cannot be read."""
    if not isinstance(said, str):
        return None
    said = said.strip()
    called = CALL.fullmatch(said)
    kind, _, rest = (called[1], "", called[2]) if called else said.partition(" ")
    return _gesture(kind.lower(), rest.strip(), "," if called else None)


def _gesture(kind: str, rest: str, comma: str | None) -> Gesture | None:
    match kind:
        case "click":
            numbers = [_number(piece) for piece in rest.split(comma)]
            if len(numbers) == 1 and numbers[0] is not None:
                return Gesture(kind="click", id=numbers[0])
            if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
                return Gesture(kind="click", point=(numbers[0], numbers[1]))
            return None
        case "type":
            place, _, text = rest.partition(comma or " ")
            number, text = _number(place), text.strip().strip("'\"")
            return (
                Gesture(kind="type", id=number, text=text)
                if number is not None and 0 < len(text) <= LONGEST_TEXT
                else None
            )
        case "key":
            return Gesture(kind="key", text=rest.lower()) if rest.lower() in KEYS else None
        case "scroll":
            return Gesture(kind="scroll", text=rest.lower()) if rest.lower() in DIRECTIONS else None
        case "stop":
            return Gesture(kind="stop", text=rest.strip("'\"")) if len(rest) <= LONGEST_TEXT else None
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None


def describe(elements: Sequence[Element], *, ids: bool = True, boxes: bool = True) -> str:
    """The page, an element a line."""
    return "\n".join(element.line(ids=ids, boxes=boxes) for element in elements)


def hit(elements: Sequence[Element], point: tuple[int, int]) -> Element | None:
    """The element at a point: of several the last, which is drawn over the others."""
    x, y = point
    return next(
        (e for e in reversed(elements) if 0 <= x - e.box[0] < e.box[2] and 0 <= y - e.box[1] < e.box[3]),
        None,
    )


def find(elements: Sequence[Element], id: int) -> Element | None:
    """The element of this number."""
    return next((element for element in elements if element.id == id), None)
