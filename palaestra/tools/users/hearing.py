"""How a scripted user understands a reply: as a question, a request to confirm, or news.

The phrases are English. Short templates such as `ask order` are understood like whole sentences. Values and names are
compared as whole words, and case is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CLAUSE = re.compile(r"[^.!?;\n]+[.!?;]?")
ASKS = re.compile(
    r"\b(?:ask|asking|what|which|who|whose|where|please (?:tell|give|provide|share|send)|may i|can i have|"
    r"could (?:you|i)|can you|i need|tell me)\b"
)
CONFIRM = re.compile(r"\b(?:confirm|confirmation|shall i|should i|do you want me|would you like me)\b")
YES = re.compile(r"\s*(?:yes|yeah|yep|sure|correct|go ahead|confirmed|please do)\b")


def mentions(text: str, word: str) -> bool:
    """Whether a text contains these words, in this order, as whole words."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text.lower()) is not None


def mentions_any(text: str, words: Iterable[str]) -> bool:
    """Whether a text contains at least one of these words."""
    return any(mentions(text, word) for word in words)


def asks_to_confirm(text: str) -> bool:
    """Whether a text asks the user for a yes or no."""
    return CONFIRM.search(text.lower()) is not None


def agrees(text: str) -> bool:
    """Whether a user's turn begins with a yes."""
    return YES.match(text.lower()) is not None


def questions(text: str) -> str:
    """The clauses of a text that ask for something."""
    clauses = CLAUSE.findall(text.lower())
    return " ".join(clause for clause in clauses if clause.endswith("?") or ASKS.search(clause))


def statements(text: str) -> str:
    """The clauses of a text that ask for nothing."""
    clauses = CLAUSE.findall(text.lower())
    return " ".join(clause for clause in clauses if not (clause.endswith("?") or ASKS.search(clause)))


def asked(text: str, hears: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The facts that a text asks for, in the order in which it names them."""
    question = questions(text)
    found = {}
    for fact, words in hears.items():
        places = [m.start() for word in words if (m := re.search(rf"(?<!\w){re.escape(word)}(?!\w)", question))]
        if places:
            found[fact] = min(places)
    return sorted(found, key=lambda fact: found[fact])
