"""Forms of `uiform`: pages of widgets with a first and a wanted value, and the shortest solutions of a form."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

FIELDS = (
    *("name", "city", "street", "country", "color", "animal", "fruit", "sport", "drink", "hobby", "song", "planet"),
    *("team", "tree", "month"),
)
SWITCHES = (
    *("news", "sound", "light", "wifi", "backup", "photos", "cookies", "alarm", "updates", "sharing", "roaming"),
    *("rotation", "location", "captions", "vibration"),
)
WORDS = ("amber", "cedar", "delta", "ember", "fjord", "grove")
ON, OFF = "on", "off"
SIDE = 1000  # width and height of the screen, in its own units
Kind = Literal["field", "switch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Box = tuple[int, int, int, int]  # left, top, right, bottom
Values = tuple[str, ...]  # of all widgets, page after page


@dataclass(frozen=True, slots=True, kw_only=True)
class Widget:
    """A part of a form that can be clicked. A field holds one of `WORDS`, a switch is on or off.

    Attributes:
        box: its place on its page. first: its value at the start. wanted: its value in a right form.
    """

    kind: Kind
    name: str
    box: Box
    first: str
    wanted: str

    @property
    def center(self) -> tuple[int, int]:
        left, top, right, bottom = self.box
        return (left + right) // 2, (top + bottom) // 2

    def holds(self, x: int, y: int) -> bool:
        """Whether a point lies in the box or on its edge."""
        left, top, right, bottom = self.box
        return left <= x <= right and top <= y <= bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a screen's tree: the window, its page, or a widget of the page. Only widgets have a `value`."""

    role: str
    name: str
    box: Box
    value: str | None = None
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The state of a form: values of all widgets, page in view, widget with the focus, and whether it is handed in."""

    values: Values
    page: int = 0
    focus: int | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gesture:
    """One action: click at a point, type a word, scroll up or down by a page, or finish."""

    type: Literal["click", "type", "scroll", "finish"]
    point: tuple[int, int] | None = None
    text: str | None = None
    direction: Literal["up", "down"] | None = None

    def plain(self) -> dict[str, Any]:
        """The gesture as JSON values, without those that are None."""
        given = {"point": None if self.point is None else [*self.point], "text": self.text, "direction": self.direction}
        return {"type": self.type, **{key: value for key, value in given.items() if value is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Pages of `rows` widgets each. `length` is the number of actions of a shortest solution, `finish` included."""

    widgets: tuple[Widget, ...]
    rows: int
    pages: int
    length: int

    @property
    def start(self) -> Screen:
        return Screen(values=tuple(widget.first for widget in self.widgets))

    def shown(self, screen: Screen) -> range:
        """The widgets in view."""
        return range(screen.page * self.rows, (screen.page + 1) * self.rows)

    def missing(self, screen: Screen) -> list[int]:
        """The widgets whose value is not the wanted one, in order."""
        return [i for i, widget in enumerate(self.widgets) if screen.values[i] != widget.wanted]

    def at(self, screen: Screen, x: int, y: int) -> int | None:
        """The widget in view at a point."""
        return next((i for i in self.shown(screen) if self.widgets[i].holds(x, y)), None)

    def next(self, screen: Screen, gesture: Gesture) -> Screen | None:
        """The screen after a gesture, or None if the gesture is impossible here."""
        if gesture.type == "finish":
            return replace(screen, finished=True)
        if gesture.type == "scroll":
            page = screen.page + (1 if gesture.direction == "down" else -1)
            return Screen(values=screen.values, page=page) if 0 <= page < self.pages else None
        if gesture.type == "type":
            if screen.focus is None or gesture.text not in WORDS:
                return None
            return replace(screen, values=_with(screen.values, screen.focus, str(gesture.text)))
        hit = None if gesture.point is None else self.at(screen, *gesture.point)
        if hit is None:
            return None
        if self.widgets[hit].kind == "field":
            return replace(screen, focus=hit)
        value = OFF if screen.values[hit] == ON else ON
        return replace(screen, values=_with(screen.values, hit, value), focus=None)

    def left(self, screen: Screen) -> int | None:
        """The number of actions of a shortest solution from here. None if a wrong form was handed in."""
        missing = self.missing(screen)
        if screen.finished:
            return None if missing else 0
        acts = sum(2 if self.widgets[i].kind == "field" else 1 for i in missing)
        if screen.focus in missing:
            acts -= 1  # it needs no click
        return acts + _scrolls(screen.page, sorted({i // self.rows for i in missing})) + 1

    def gestures(self, screen: Screen) -> Iterator[Gesture]:
        """All gestures that are possible here, in the order of the screen."""
        yield from (Gesture(type="click", point=self.widgets[i].center) for i in self.shown(screen))
        if screen.focus is not None:
            yield from (Gesture(type="type", text=word) for word in WORDS)
        if screen.page > 0:
            yield Gesture(type="scroll", direction="up")
        if screen.page < self.pages - 1:
            yield Gesture(type="scroll", direction="down")
        yield Gesture(type="finish")

    def best(self, screen: Screen) -> list[Gesture]:
        """The gestures that begin a shortest solution."""
        left = self.left(screen)
        if not left:
            return []
        return [gesture for gesture in self.gestures(screen) if self._after(screen, gesture) == left - 1]

    def _after(self, screen: Screen, gesture: Gesture) -> int | None:
        after = self.next(screen, gesture)
        return None if after is None else self.left(after)

    def tree(self, screen: Screen) -> Node:
        """The screen as a tree: the window, its page, and the widgets in view."""
        whole = (0, 0, SIDE, SIDE)
        seen = tuple(
            Node(role=self.widgets[i].kind, name=self.widgets[i].name, box=self.widgets[i].box, value=screen.values[i])
            for i in self.shown(screen)
        )
        page = Node(role="page", name=f"{screen.page + 1} of {self.pages}", box=whole, children=seen)
        return Node(role="window", name="form", box=whole, children=(page,))


def _with(values: Values, place: int, value: str) -> Values:
    return (*values[:place], value, *values[place + 1 :])


def _scrolls(page: int, wanted: list[int]) -> int:
    """The fewest scrolls from a page over all wanted pages."""
    if not wanted:
        return 0
    up, down = max(page - wanted[0], 0), max(wanted[-1] - page, 0)
    return up + down + min(up, down)


# ---- building ---------------------------------------------------------------------------------------------
def longest_possible(rows: int, pages: int) -> int:
    """The actions of the longest form: every widget is a field with a wrong word."""
    return 2 * rows * pages + pages


@lru_cache(maxsize=8192)
def build(rows: int, pages: int, shortest: int, longest: int, seed: int) -> Form:
    """A form whose shortest solution has a number of actions that is drawn between `shortest` and `longest`."""
    draw = random.Random(seed)
    length = draw.randint(shortest, longest)
    scrolls = draw.choice([s for s in range(min(pages, length - 1)) if length - 1 - s <= 2 * rows * (s + 1)])
    cost, room = length - 1 - scrolls, rows * (scrolls + 1)
    fields = draw.randint(max(cost - room, 0), cost // 2)
    count = cost - fields  # how many widgets must change: a field costs two actions, a switch one
    places = {draw.randrange(room - rows, room)}  # the last page that needs a visit
    places |= {*draw.sample([place for place in range(room) if place not in places], count - 1)}
    chosen = draw.sample(sorted(places), count)
    kinds: dict[int, Kind] = {place: "field" if i < fields else "switch" for i, place in enumerate(chosen)}
    names = {"field": draw.sample(FIELDS, rows * pages), "switch": draw.sample(SWITCHES, rows * pages)}
    widgets = []
    for place in range(rows * pages):
        kind = kinds[place] if place in kinds else draw.choice(KINDS)
        first, other = draw.sample(WORDS if kind == "field" else (ON, OFF), 2)
        box = _box(place % rows, rows, draw)
        wanted = other if place in kinds else first
        widgets.append(Widget(kind=kind, name=names[kind][place], box=box, first=first, wanted=wanted))
    return Form(widgets=tuple(widgets), rows=rows, pages=pages, length=length)


def _box(row: int, rows: int, draw: random.Random) -> Box:
    """A random box in a row of the screen. The rows begin below the topmost 100 units."""
    height = (SIDE - 100) // rows
    top = 100 + row * height + draw.randrange(height // 8, height // 4)
    left = draw.randrange(50, 300)
    return left, top, left + draw.randrange(300, 600), top + height // 2
