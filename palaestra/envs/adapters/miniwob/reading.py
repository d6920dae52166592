"""What a page shows: turns the raw list from `page.js` into elements with roles, texts and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.envs.kit.elements import Element

ROLES = {
    "button": "button",
    "input_submit": "button",
    "input_button": "button",
    "a": "link",
    "input_text": "field",
    "input_number": "field",
    "input_email": "field",
    "input_search": "field",
    "input_password": "field",
    "input_date": "field",
    "input_time": "field",
    "textarea": "area",
    "input_checkbox": "checkbox",
    "input_radio": "radio",
    "select": "list",
    "label": "label",
    "img": "image",
    "h1": "heading",
    "h2": "heading",
    "h3": "heading",
    "th": "label",
    "td": "cell",
    "tspan": "text",
}
COLORS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "lime": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "cyan": (0, 255, 255),
    "aqua": (0, 255, 255),
    "magenta": (255, 0, 255),
    "pink": (255, 192, 203),
    "purple": (128, 0, 128),
    "orange": (255, 165, 0),
    "olive": (128, 128, 0),
}
PLAIN = ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)", "rgb(239, 239, 239)", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An element with further facts from the page's code. Experts read them; agents see only `element`.

    Attributes:
        dom: the element's id in the document. classes: its CSS classes.
        options: the entries of a list.
        color: as the page writes it; empty for common backgrounds.
        grip: a point where a click hits the element.
    """

    element: Element
    dom: str = ""
    classes: str = ""
    options: tuple[str, ...] = ()
    color: str = ""
    grip: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is on the page at one moment. Readings of equal pages are equal."""

    instruction: str = ""
    parts: tuple[Part, ...] = ()
    done: bool = False
    reward: float = field(default=0.0)  # the page's raw reward, which does not shrink with time

    @property
    def elements(self) -> tuple[Element, ...]:
        """The elements that agents see."""
        return tuple(part.element for part in self.parts)


def reading(raw: Mapping[str, Any]) -> Reading:
    """The reading from the value that `palaestraRead()` of `page.js` returns."""
    if raw["done"]:
        return Reading(done=True, reward=float(raw["reward"]))
    parts = tuple(_part(number, one) for number, one in enumerate(raw["elements"], start=1))
    return Reading(instruction=raw["utterance"], parts=parts)


def _part(number: int, raw: Mapping[str, Any]) -> Part:
    tag, text, color = raw["tag"], raw["text"], raw["color"]
    role = ROLES.get(tag, tag if raw["svg"] and tag != "text" else "text")
    if not text and (raw["svg"] or role == "text"):
        text, role = color_name(color), role if raw["svg"] else "box"
    if role == "list" and raw["options"]:
        text = ", ".join(raw["options"])
    left, top, width, height = (round(number) for number in raw["box"])
    element = Element(
        id=number, role=role, text=text, box=(left, top, width, height), value=_value(role, raw["value"]) or None
    )
    return Part(
        element=element,
        dom=raw["dom"],
        classes=raw["classes"],
        options=tuple(raw["options"]),
        color="" if color in PLAIN else color,
        grip=(int(raw["grip"][0]), int(raw["grip"][1])),
    )


def _value(role: str, value: str) -> str:
    return value[:80] if role == "area" else value


def rgb(color: str) -> tuple[int, int, int] | None:
    """Red, green and blue of a color that is written as a name or as `rgb(…)`; None if it cannot be read."""
    if color.lower() in COLORS:
        return COLORS[color.lower()]
    numbers = [int(number) for number in re.findall(r"\d+", color)[:3]]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def color_name(color: str) -> str:
    """The name of the nearest known color; the text itself if it cannot be read."""
    numbers = rgb(color)
    if numbers is None:
        return color
    return min(COLORS, key=lambda name: sum((a - b) ** 2 for a, b in zip(COLORS[name], numbers, strict=True)))
