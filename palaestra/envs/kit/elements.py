"""Write the elements of a page as lines of text, and write and read gestures, such as clicks, as words or as calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from palaestra.envs.kit.leniency import read_leniently

Kind = Literal["click", "type", "key", "scroll", "stop"]
Box = tuple[int, int, int, int]  # left, top, width, height
KEYS = ("enter", "tab", "space", "backspace", "escape", "up", "down", "left", "right")
DIRECTIONS = ("up", "down")
CALL = re.compile(r"(click|type|key|scroll|stop)\((.*)\)", re.DOTALL | re.IGNORECASE)
LONGEST_TEXT = 200  # most characters of a typed text or an answer
FOCUS = 0  # in place of an element's number: the element that has the focus


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """An element of a page, written as `[3] field 'city' (8,40,120,20) rome`."""

    id: int
    role: str
    text: str
    box: Box
    value: str | None = None

    @property
    def center(self) -> tuple[int, int]:
        """The middle of the box."""
        left, top, width, height = self.box
        return left + width // 2, top + height // 2

    def line(self, *, ids: bool = True, boxes: bool = True) -> str:
        """The line that agents read. A value that is empty is left out."""
        box = "({},{},{},{})".format(*self.box) if boxes else ""
        return " ".join(
            piece
            for piece in (f"[{self.id}]" if ids else "", self.role, f"'{self.text}'", box, self.value or "")
            if piece
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gesture:
    """One act: click an element or a point, type into an element, press a key, scroll, or stop with an answer."""

    kind: Kind
    id: int | None = None
    point: tuple[int, int] | None = None
    text: str = ""  # the typed text, the answer, the name of the key, or the direction of the scroll

    def write(self, *, calls: bool = False) -> str:
        """The gesture as words, `type 3 new york`, or as a call, `type(3,new york)`."""
        place = (self.id,) if self.id is not None else self.point or ()
        pieces = [str(number) for number in place] + ([self.text] if self.text else [])
        return f"{self.kind}({','.join(pieces)})" if calls else " ".join([self.kind, *pieces])


def read(said: object) -> Gesture | None:
    """The gesture that a text means, written as words or as a call; None if it cannot be read."""
    return read_leniently(said, _understood) if isinstance(said, str) else None


def _understood(said: str) -> Gesture | None:
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
    """The lines of all elements."""
    return "\n".join(element.line(ids=ids, boxes=boxes) for element in elements)


def hit(elements: Sequence[Element], point: tuple[int, int]) -> Element | None:
    """The last of the elements at a point, which is drawn over the others; None if there is none."""
    x, y = point
    return next(
        (e for e in reversed(elements) if 0 <= x - e.box[0] < e.box[2] and 0 <= y - e.box[1] < e.box[3]),
        None,
    )


def find(elements: Sequence[Element], id: int) -> Element | None:
    """The element with this number; None if there is none."""
    return next((element for element in elements if element.id == id), None)
