"""Tell the special tokens that a chat template writes from the same strings inside messages."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

BRACKETS = ("<", "[", "{", "(", "|")


class Quoting:
    """Encodes a rendered dialogue so that special tokens come from the template alone.

    Use it in this order: `quote` the messages, let the template write them, pass its text to `own`, pass that to `ids`.

    `quote` replaces each special token in a message by a mark. Any special token in the template's text is then the
    template's own, and `own` gives it a name that no message can contain. Text without special tokens has the ids that
    the tokenizer itself gives, white space around special tokens included.

    Args:
        tokenizer: a fast tokenizer of `transformers`. It is not changed.
        template: text that the template writes for some dialogue. Added tokens in brackets that occur in it mark turns,
            so they count as special even if the tokenizer does not say so.
    """

    def __init__(self, tokenizer: Any, *, template: str) -> None:
        added = tokenizer.added_tokens_decoder
        kept = {i: token for i, token in added.items() if token.content and (token.special or _shapes(token, template))}
        secret = secrets.token_hex(8)  # the writer of a message cannot know it
        names = {token.content: f"\ue000{secret}:{i}\ue001" for i, token in kept.items()}
        marks = {text: f"\ue000{secret}#{place}\ue001" for place, text in enumerate(names)}
        self._gap = f"\ue000{secret}\ue001"
        self._ids_of = {names[token.content]: i for i, token in kept.items()}
        self._named = re.compile(f"\ue000{secret}:\\d+\ue001")
        self._names, self._marks, self._texts = names, marks, {mark: text for text, mark in marks.items()}
        longest_first = sorted(names, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._marked = re.compile(f"\ue000{secret}#\\d+\ue001")
        # In this copy special tokens are ordinary text, and the template's own special tokens have new names.
        self._encoder = copy.deepcopy(tokenizer.backend_tokenizer)
        self._encoder.no_truncation()
        self._encoder.no_padding()
        self._encoder.encode_special_tokens = True
        self._encoder.add_tokens([_like(token, names[token.content]) for token in kept.values()])
        self._encoder.add_tokens([AddedToken(self._gap, normalized=False, special=False)])
        self._meant = {self._encoder.token_to_id(names[token.content]): i for i, token in kept.items()}
        self._forged = kept.keys() - {tokenizer.unk_token_id}  # an unknown character gives this id too
        self._gap_id = self._encoder.token_to_id(self._gap)

    def quote(self, messages: Any) -> Any:
        """The messages (a text, or lists and mappings of texts) with their special tokens replaced by marks."""
        if isinstance(messages, str):
            return self._special.sub(lambda found: self._marks[found[0]], messages)
        if isinstance(messages, dict):
            return {key: self.quote(value) for key, value in messages.items()}
        if isinstance(messages, list | tuple):
            return [self.quote(value) for value in messages]
        return messages

    def own(self, written: str) -> str:
        """The template's text for quoted messages, with each special token replaced by its new name."""
        return self._special.sub(lambda found: self._names[found[0]], written)

    def leading(self, text: str) -> list[int]:
        """The ids of the special tokens with which a text of `own` begins."""
        found, place = [], 0
        while (name := self._named.match(text, place)) is not None:
            found.append(self._ids_of[name[0]])
            place = name.end()
        return found

    def named(self, ids: Sequence[int]) -> str:
        """The names of special tokens, as `own` writes them."""
        names = {i: name for name, i in self._ids_of.items()}
        return "".join(names[i] for i in ids)

    def ids(self, text: str) -> list[int]:
        """The token ids of a text that `own` returned, or of a part of it."""
        found = self._encode(self._marked.sub(lambda mark: self._texts[mark[0]], text))
        if not self._forged.isdisjoint(found):  # the tokenizer merges plain text into special tokens
            found = self._encode(self._marked.sub(lambda mark: self._torn(self._texts[mark[0]]), text))
        return [self._meant.get(i, i) for i in found if i != self._gap_id]

    def _torn(self, text: str) -> str:
        """The text with a gap in it, which no token can span."""
        return text[:1] + self._gap + text[1:]

    def _encode(self, text: str) -> list[int]:
        return list(self._encoder.encode(text, add_special_tokens=False).ids)


def _shapes(token: AddedToken, template: str) -> bool:
    return token.content in template and token.content.startswith(BRACKETS)


def _like(token: AddedToken, name: str) -> AddedToken:
    """An added token with another name, which is found and takes white space like the given one."""
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,  # this tokenizer treats special tokens as ordinary text
    )
