"""Actions: what an agent may write in the two styles, and how it is read.

Knows texts. Knows nothing of graphs, passages or what an action does.

    words    search amber author          open d3          answer birch
    tags     <think> i need the author of amber. </think> <search> amber author </search>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

SEARCH, OPEN, ANSWER = "search", "open", "answer"
KINDS = (SEARCH, OPEN, ANSWER)
Style = Literal["words", "tags"]

_TEXT = r"([^<>]*\S[^<>]*)"
_TAGGED = re.compile(r"<(search|open|answer)>([^<>]*)</\1>")
_ONE_TURN = re.compile(rf"\s*<think>{_TEXT}</think>\s*<(search|open|answer)>{_TEXT}</\2>\s*")
# Without an engine an agent may search itself: what it recalls stands where results would.
_RECALLED = re.compile(
    rf"\s*<think>{_TEXT}</think>\s*"
    rf"(?:<search>{_TEXT}</search>\s*<information>{_TEXT}</information>\s*(?:<think>{_TEXT}</think>\s*)?)*"
    rf"<answer>{_TEXT}</answer>\s*"
)
_THOUGHTS = {SEARCH: "i need {}.", OPEN: "i read {}.", ANSWER: "it is {}."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What was meant. `text`: the query, the passage's id or the answer; an empty answer asks the reader to answer."""

    kind: str
    text: str = ""


def write(act: Act, style: Style) -> str:
    """How it is written; `read` gives it back."""
    if style == "words":
        return f"{act.kind} {act.text}".strip()
    thought = _THOUGHTS[act.kind].format(act.text) if act.text else "that is enough."
    return f"<think> {thought} </think> <{act.kind}> {act.text} </{act.kind}>"


def read(text: str, style: Style, *, alone: bool = False, reader: bool = False) -> tuple[Act | None, bool]:
    """What is meant, None if that cannot be told; and whether it is written as it should be.

    Words are read as they stand. Tags are read where exactly one action is tagged; the form asks for a thought before
    it and nothing else.

    Args:
        alone: there is no search engine: only answers are taken, and before one the agent may search itself.
        reader: an answer may be empty, since another one answers.
    """
    if style == "words":
        kind, _, rest = " ".join(text.lower().split()).partition(" ")
        act = _act(kind, rest, alone, reader)
        return act, act is not None
    found = _TAGGED.findall(text)
    if alone:
        found = [(kind, inner) for kind, inner in found if kind == ANSWER]
    if len(found) != 1:
        return None, False
    kind, inner = found[0]
    act = _act(kind, " ".join(inner.split()), alone, reader)
    shape = _RECALLED if alone else _ONE_TURN
    if reader and kind == ANSWER:
        text = text.replace(f"<answer>{inner}</answer>", f"<answer>{inner or ' '}.</answer>")
    return act, act is not None and shape.fullmatch(text) is not None


def _act(kind: str, rest: str, alone: bool, reader: bool) -> Act | None:
    if kind not in KINDS or (alone and kind != ANSWER):
        return None
    if not rest and not (reader and kind == ANSWER):
        return None
    return Act(kind=kind, text="" if reader and kind == ANSWER else rest.lower() if kind == OPEN else rest)


def parts_of(text: str, count: int) -> list[str]:
    """The answers in one text to so many questions: between semicolons, else word by word if these are as many."""
    if count == 1:
        return [text]
    parts = text.split(";") if ";" in text else text.split()
    if len(parts) != count and ";" not in text:
        parts = [text]
    return [*parts, *[""] * count][:count]
