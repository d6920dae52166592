"""Speech: the replies of an agent to a customer, as short templates or as sentences.

There are three: ask for a fact, ask to confirm a change, and tell how a request ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from palaestra.data import ToolCall
from palaestra.envs.worlds.desk.kinds import HEARS

Style = Literal["templates", "free"]
TEMPLATE = re.compile(rf"ask (?:{'|'.join(HEARS)})|confirm(?: \w+){{1,4}}|tell(?: \w+){{1,4}}")
LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a fact."""

    fact: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ask the customer to confirm a change."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell how a request ended, or a value that the customer asked for."""

    word: str


Reply = Ask | Confirm | Tell


def written(reply: Reply, style: Style) -> str:
    """A reply as text, such as `ask order` or "what is your order?"."""
    match reply:
        case Ask(fact):
            return f"ask {fact}" if style == "templates" else f"what is your {fact}?"
        case Confirm(call):
            change = " ".join((call.name, *map(str, call.arguments.values())))
            return f"confirm {change}" if style == "templates" else f"please confirm: {change}."
        case Tell(word):
            return f"tell {word}" if style == "templates" else f"it is {word}."


def can_be_read(text: str, style: Style) -> bool:
    """Whether a text is a reply: with templates one of them, else anything with a letter in it."""
    if style == "templates":
        return TEMPLATE.fullmatch(" ".join(text.lower().split())) is not None
    return LETTER.search(text) is not None
