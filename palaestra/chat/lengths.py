"""Encodes texts, also long ones: a text that no context can hold is refused before it takes time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from palaestra.data.interaction import Observation
from palaestra.errors import EpisodeFailure, is_panic

SHORT = 10_000  # characters
HEAD = 16  # characters for each token of the context
REMEMBERED = 50_000  # texts
Result = TypeVar("Result")


class ContextFull(Exception):
    """The next prompt leaves no room for a response in the model's context.

    Attributes:
        letters: characters of the prompt, if they are so many that it was not tokenized; else 0.
    """

    def __init__(self, letters: int = 0) -> None:
        self.letters = letters
        super().__init__("the prompt leaves no room for a response")


class Encoder:
    """Gives the ids of texts.

    Args:
        tokenizer: is used by this object alone.

    Attributes:
        limit: the most ids of a text; None: any number.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.limit: int | None = None

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._tokenizer.get_vocab()), default=1)

    def encode(self, text: str, *, special: bool = False) -> Encoding:
        """The ids of a text, and their places.

        Args:
            special: add the tokens that the tokenizer puts around texts.

        Raises: ContextFull, for a text that has certainly more ids than `limit`; EpisodeFailure, if the tokenizer
            fails.
        """
        try:
            self._refuse_long(text)
            if len(text) <= SHORT:
                return self._tokenizer.encode(text, add_special_tokens=special)
            return self._tokenizer.encode_batch([text], add_special_tokens=special)[0]  # other threads work meanwhile
        except BaseException as error:
            if is_panic(error):
                raise _failure(error) from error
            raise

    def _refuse_long(self, text: str) -> None:
        if self.limit is None or len(text) <= self.limit:
            return
        if len(text) > self.limit * self.longest:
            raise ContextFull(len(text))
        head = text[: HEAD * self.limit]
        if len(text) > 2 * len(head):
            # Few texts are so long and fit, such as those of spaces alone. The ids of a whole take 100 bytes each.
            [counted] = self._tokenizer.encode_batch_fast([head], add_special_tokens=False)
            if len(counted.ids) > 2 * self.limit:
                raise ContextFull(len(text))


def decoded(tokenizer: Any, ids: Iterable[int], *, special: bool) -> str:
    """The text of ids, with special tokens or without them. Raises: EpisodeFailure, if the tokenizer fails."""
    try:
        return str(tokenizer.decode([int(i) for i in ids], skip_special_tokens=not special))
    except BaseException as error:
        if is_panic(error):
            raise _failure(error) from error
        raise


def _failure(error: BaseException) -> EpisodeFailure:
    what = f"the tokenizer fails on this text: {str(error)[:200].rstrip('.')}."
    remedy = "Correct the parts of its tokenizer.json, such as a regular expression."
    return EpisodeFailure(boundary="engine", where="tokenizer", what=what, remedy=remedy)


def letters_of(observation: Observation) -> int:
    """How many characters of an observation are tokenized, about. The texts of its messages count, and its own without
    messages."""
    if not observation.messages:
        return len(observation.text or "") + len(observation.instruction or "")
    contents = (message.get("content") for message in observation.messages)
    parts = (part for content in contents for part in (content if isinstance(content, list) else [content]))
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return sum(len(text) for text in texts if isinstance(text, str))


def remembered(function: Callable[[str], Result]) -> Callable[[str], Result]:
    """A function of a text that remembers its results for short texts. Long ones would fill the memory."""
    short = lru_cache(REMEMBERED)(function)
    return lambda text: short(text) if len(text) <= SHORT else function(text)
