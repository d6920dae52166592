"""How large a body may be for a context. What no context holds is refused before it takes time and memory: by bytes
before its JSON is read, and by characters and entries before these are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from palaestra.gateway.faults import too_long
from palaestra.http.rules import KIB

SPARE = 64 * KIB  # bytes of a body for everything but its texts
ESCAPED = 6  # bytes of a character that is written as \u1234
THOUGHTS = ("reasoning_content", "reasoning")  # templates leave them out of earlier replies


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most of a prompt.

    Attributes:
        tokens: that the context holds. longest: characters of the longest token.
        full: called before a refusal.
    """

    tokens: int
    longest: int
    full: Callable[[], None] = lambda: None

    @property
    def letters(self) -> int:
        """The most characters."""
        return self.tokens * self.longest

    def refuse_bytes(self, count: int, *, prompts: int = 1) -> None:
        """Refuse a body by its bytes. `prompts`: how many it may have. Raises: Refusal."""
        if count > SPARE + ESCAPED * self.letters * prompts:
            self._refuse()

    def refuse_chat(self, given: Any) -> None:
        """Refuse the JSON of a chat with more messages or tools than tokens, or with too many characters.

        Raises: Refusal.
        """
        if not isinstance(given, Mapping):
            return
        lists = [value for key in ("messages", "tools") if isinstance(value := given.get(key), list)]
        if any(len(value) > self.tokens for value in lists) or is_larger(lists, self.letters):
            self._refuse()

    def _refuse(self) -> NoReturn:
        self.full()
        raise too_long(None, None, self.tokens)


def is_larger(value: Any, most: int) -> bool:
    """Whether a value of JSON has more characters than `most`, thoughts left out. A number counts as one, and so do the
    ends of a list or an object."""
    count, left = 0, [value]
    while left and count <= most:
        value = left.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, dict):
            count += 1 + sum(map(len, value))
            left += [inner for key, inner in value.items() if key not in THOUGHTS]
        else:
            count += 1
            if isinstance(value, list):
                count += len(value)
                left += value if count <= most else []
    return count > most
