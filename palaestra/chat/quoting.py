"""Tell the special tokens that a chat template writes from the same strings inside messages."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

from palaestra.chat.lengths import Encoder

ATTEMPTS = 8  # to take a text apart in which the tokenizer finds special tokens
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
        self._secret = secret
        self._gap = f"\ue000{secret}\ue001"
        self._ids_of = {names[token.content]: i for i, token in kept.items()}
        self._named = re.compile(f"\ue000{secret}:\\d+\ue001")
        self._names, self._marks = names, marks
        longest_first = sorted(names, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        # Pieces of special tokens at the ends of a message, which the text beside it could complete.
        heads = sorted({name[:n] for name in names for n in range(1, len(name))}, key=len, reverse=True)
        tails = sorted({name[n:] for name in names for n in range(1, len(name))}, key=len, reverse=True)
        pieces = dict.fromkeys([*heads, *tails])
        marks |= {piece: f"\ue000{secret}#{place}\ue001" for place, piece in enumerate(pieces, start=len(names))}
        self._longest = max(map(len, names), default=0)
        self._head_at_end = re.compile(f"(?:{'|'.join(map(re.escape, heads)) or '(?!)'})\\Z")
        self._tail_at_start = re.compile(f"(?:{'|'.join(map(re.escape, tails)) or '(?!)'})")
        self._texts = {mark: text for text, mark in marks.items()}
        self._marked = re.compile(f"\ue000{secret}#\\d+\ue001")
        # In this copy special tokens are ordinary text, and the template's own special tokens have new names.
        copied = copy.deepcopy(tokenizer.backend_tokenizer)
        copied.encode_special_tokens = True
        copied.add_tokens([_like(token, names[token.content]) for token in kept.values()])
        copied.add_tokens([AddedToken(self._gap, normalized=False, special=False)])
        self.encoder = Encoder(copied)
        self._meant = {copied.token_to_id(names[token.content]): i for i, token in kept.items()}
        self._forged = kept.keys() - {tokenizer.unk_token_id}  # an unknown character gives this id too
        self._gap_id = copied.token_to_id(self._gap)

    def quote(self, messages: Any) -> Any:
        """The messages (a text, or lists and mappings of texts) with their special tokens replaced by marks."""
        if isinstance(messages, str):
            return self._ends_quoted(self._special.sub(lambda found: self._marks[found[0]], messages))
        if isinstance(messages, dict):
            return {self.quote(key): self.quote(value) for key, value in messages.items()}
        if isinstance(messages, list | tuple):
            return [self.quote(value) for value in messages]
        return messages

    def own(self, written: str) -> str:
        """The template's text for quoted messages, with each special token replaced by its new name."""
        return self._special.sub(lambda found: self._names[found[0]], written)

    def place(self, number: int) -> str:
        """A text that stands for something else and that no message can contain."""
        return f"\ue000{self._secret}~{number}\ue001"

    def knows(self, token: int) -> bool:
        """Whether `named` has a name for this id."""
        return token in self._ids_of.values()

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

    def _ends_quoted(self, text: str) -> str:
        """A text whose ends cannot become special tokens together with what stands beside it."""
        start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
        head = self._head_at_end.search(text, max(start, stop - self._longest), stop)
        if head is not None:
            text, stop = text[: head.start()] + self._marks[head[0]] + text[stop:], head.start()
        tail = self._tail_at_start.match(text, start, max(start, stop))
        return text if tail is None else text[:start] + self._marks[tail[0]] + text[tail.end() :]

    def ids(self, text: str) -> list[int]:
        """The token ids of a text that `own` returned, or of a part of it. Raises: ContextFull, if it is too long."""
        text = self._marked.sub(lambda mark: self._texts[mark[0]], text)
        found = self.encoder.encode(text)
        for _ in range(ATTEMPTS):
            if self._forged.isdisjoint(found.ids):
                break
            # The tokenizer merges or normalizes plain text to special tokens: no token can span a gap.
            for token, (start, stop) in reversed(list(zip(found.ids, found.offsets, strict=True))):
                if token in self._forged:
                    place = start + len(text[start:stop]) - len(text[start:stop].lstrip()) + 1
                    text = text[:place] + self._gap + text[place:]
            found = self.encoder.encode(text)
        return [self._meant.get(i, i) for i in found.ids if i != self._gap_id]


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
