"""Actions of `memory_dialogue`: operations on the memory, selections and answers, and how they are written and read.

There are two styles:

    words   add anna dog rex      update 2 anna dog rex fido      delete 2    noop   select 1 3     answer elm
    calls   ADD("anna dog rex")   UPDATE(2, "anna dog rex fido")  DELETE(2)   NOOP   select(1, 3)   answer("elm")
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from palaestra.envs.kit.leniency import read_leniently

OPERATIONS = ("add", "update", "delete", "noop")
SELECT, ANSWER = "select", "answer"
Style = Literal["words", "calls"]
_CALL = re.compile(r"\s*+(\w++)\s*+(?:\((.*)\)\s*+)?", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An action: one of OPERATIONS, "select" or "answer", with numbers of entries and a text if it needs them."""

    kind: str
    ids: tuple[int, ...] = ()
    text: str = ""


def write(operation: Operation, style: Style) -> str:
    """The text of an action. `read` gives the action back."""
    kind, ids, text = operation.kind, [str(number) for number in operation.ids], operation.text
    if style == "words":
        return " ".join([kind, *ids, *([text] if text else [])])
    name = kind.upper() if kind in OPERATIONS else kind
    arguments = ", ".join([*ids, *([f'"{text}"'] if text else [])])
    return f"{name}({arguments})" if arguments else name


def read(text: str, style: Style) -> Operation | None:
    """The action that a text means, in lower case. None if it cannot be read."""
    return read_leniently(text, lambda one: _understood(one, style))


def _understood(text: str, style: Style) -> Operation | None:
    if style == "words":
        kind, _, rest = " ".join(text.lower().split()).partition(" ")
        return _operation(kind, rest, " ")
    found = _CALL.fullmatch(text)
    return None if found is None else _operation(found[1].lower(), " ".join((found[2] or "").lower().split()), ",")


def _operation(kind: str, rest: str, between: str) -> Operation | None:
    if kind in ("add", ANSWER):
        text = _plain(rest)
        return Operation(kind=kind, text=text) if text else None
    if kind == "update":
        number, _, text = rest.partition(between)
        ids, text = _ids([number]), _plain(text)
        return Operation(kind=kind, ids=ids, text=text) if ids and text else None
    if kind in ("delete", SELECT):
        ids = _ids(rest.replace(",", " ").split())
        return Operation(kind=kind, ids=ids) if ids and (kind == SELECT or len(ids) == 1) else None
    return Operation(kind=kind) if kind == "noop" and not rest else None


def _ids(numbers: list[str]) -> tuple[int, ...]:
    """The numbers in order, each once. Empty if one of them is not a number."""
    plain = [number.strip() for number in numbers]
    return tuple(dict.fromkeys(int(one) for one in plain)) if all(map(_NUMBER.fullmatch, plain)) else ()


def _plain(text: str) -> str:
    return " ".join(text.replace('"', " ").split()).removesuffix(".")
