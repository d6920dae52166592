"""Replies: the text, the thought and the calls in sampled ids, all at once or while they arrive."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from palaestra.chat import Renderer
from palaestra.chat.lengths import decoded
from palaestra.chat.thoughts import LEFT_OPEN, TAGS
from palaestra.data import ToolCall
from palaestra.data.interaction import FinishReason
from palaestra.tools.calls import Parsed, without_last

OPEN, CLOSE = "<think>", "</think>"
LED = re.compile(rf"\s*{OPEN}(.*?)(?:{CLOSE}|\Z)", re.DOTALL)
OPENINGS = re.compile(rf"\A(?:\s*{OPEN})+")
LOST = "\ufffd"  # what stands for bytes that are no complete character
CALL_BEGINS = re.compile(r"[<{\[`]")  # a call in a text, or the mark of its code, begins with one of these
STOP, LENGTH, CALLS = "stop", "length", "tool_calls"
Tools = Sequence[Mapping[str, Any]]


def new_id(kind: str) -> str:
    """An id that no other object has."""
    return f"{kind}{secrets.token_hex(12)}"


class Delta(NamedTuple):
    """What a reply has said since the last delta."""

    thinking: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole reply.

    Attributes:
        text: what is said. thinking: the thought before it. calls: of tools, with ids.
        finish: "stop", "length" or "tool_calls".
        tokens, logprobs: int32 and float32 (n,), what was drawn.
        prompt: int32 (m,), the ids before it. prompt_tokens: how many tokens the messages have.
        pieces: the text of each token.
        exact: whether text, thought and calls say all that was drawn. False: a text of `stop` or a call was left out,
            or a call could not be read.
    """

    text: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = STOP
    tokens: np.ndarray
    logprobs: np.ndarray
    prompt: np.ndarray
    prompt_tokens: int
    pieces: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the replies to one request are read.

    Attributes:
        renderer, tokenizer: of the policy.
        prompt: int32 (m,), the ids before the reply. prompt_tokens: of all messages, as the usage counts them.
        tools: that the request declares. several: whether a reply may call more than one of them.
        stops: texts that end a reply, and do not belong to it.
        pieces: whether to give the text of each token.
        plain: the reply is the continuation of a text, and no message: it has neither thoughts nor calls.
        new_call: gives the id of each call.
    """

    renderer: Renderer
    tokenizer: Any
    prompt: np.ndarray
    prompt_tokens: int
    tools: Tools = ()
    several: bool = True
    stops: tuple[str, ...] = ()
    plain: bool = False
    pieces: bool = False
    new_call: Callable[[], str] = field(default=lambda: new_id("call_"))

    @property
    def opened(self) -> bool:
        """Whether the prompt ends in a thought, which the reply continues."""
        return not self.plain and LEFT_OPEN.search(self.decode(self.prompt[-16:])) is not None

    def decode(self, ids: np.ndarray, *, special: bool = True) -> str:
        """The text of ids, with special tokens or without them."""
        return decoded(self.tokenizer, ids, special=special)

    def stopped(self, ids: np.ndarray, *, new: int) -> int | None:
        """How many ids a text of `stops` leaves: those up to the one that completes it. None: it does not occur.

        Args:
            new: how many of the ids were not there at the last call.
        """
        if not self.stops:
            return None
        longest = max(len(text.encode()) for text in self.stops)  # a token has at least one byte, or is special
        begin = max(0, len(ids) - new - 2 * longest - 8)
        if not any(text in self.decode(ids[begin:], special=False) for text in self.stops):
            return None
        for count in range(max(1, len(ids) - new), len(ids) + 1):
            text = self.decode(ids[begin:count], special=False)
            if any(stop in text for stop in self.stops):
                return count
        return None

    def read(self, ids: np.ndarray, logprobs: np.ndarray, finish: FinishReason, *, stopped: bool = False) -> Reply:
        """The reply.

        Args:
            stopped: a text of `stops` ends the ids.
        """
        if self.plain:
            text = self.decode(ids, special=False)
        else:
            text = self.renderer.text(ids, tools=self.tools, prompt=self.prompt)
        if stopped:
            begin = len(OPEN) + 1 if self.opened and text.startswith(OPEN) else 0  # the renderer has added the tag
            found = [at for stop in self.stops if (at := text.find(stop, begin)) >= 0]
            text = text[: min(found, default=len(text))]
            text = text if self.plain else text.strip()
        parsed = self.renderer.calls(text, self.tools) if self.tools else Parsed()
        thinking, said = self._apart(text)
        calls = [ToolCall(name=call.name, arguments=call.arguments, id=self.new_call()) for call in parsed.calls]
        if calls:
            left, beside = self._apart(parsed.said)
            thinking, said = left or thinking, _beside(said, beside)
        kept = calls if self.several else calls[:1]
        ended = stopped or finish is FinishReason.STOP
        return Reply(
            text=said,
            thinking=thinking,
            calls=tuple(kept),
            finish=CALLS if kept else STOP if ended else LENGTH,
            tokens=ids,
            logprobs=logprobs,
            prompt=self.prompt,
            prompt_tokens=self.prompt_tokens,
            pieces=tuple(self.decode(ids[n : n + 1]) for n in range(len(ids))) if self.pieces else (),
            exact=not stopped and len(kept) == len(calls) and parsed.fault is None,
        )

    def _apart(self, text: str) -> tuple[str, str]:
        """The thought with which a reply begins, and the rest."""
        if self.plain:
            return "", text
        found = LED.match(text)
        if found is not None:
            return _bare(found[1]), text[found.end() :].strip()
        thought, closed, rest = text.partition(CLOSE)
        return (_bare(thought), rest.strip()) if closed and self.opened else ("", text)


def _bare(thought: str) -> str:
    """A thought without the tags that open it."""
    return OPENINGS.sub("", thought).strip()


def _beside(said: str, beside: str) -> str:
    """What a reply says beside its calls.

    Args:
        said: with the calls. beside: without them. Before the first call all lines are kept, as a stream has shown
            them.
    """
    begin = CALL_BEGINS.search(said)
    head = "" if begin is None else said[: begin.start()].rstrip()
    short = without_last(head)
    return head + beside[len(short) :] if beside.startswith(short) else beside


class Incoming:
    """A reply that arrives piece by piece: what of it is certain.

    What may belong to a call, to a text of `stops` or to half a character waits. So does all that follows a special
    token. The deltas together are the beginning of what `Reading.read` gives for the whole.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading, self._opened = reading, reading.opened
        added = reading.tokenizer.added_tokens_decoder
        self._special = {i for i, token in added.items() if token.special or token.content in TAGS[2:]}
        self._raw, self._prefix, self._read, self._count = "", 0, 0, 0
        self._closed = False
        self._sent = Delta()

    def push(self, ids: np.ndarray) -> Delta:
        """What is certain of these ids, all so far, and was not before."""
        self._decode(ids)
        if self._reading.plain:
            return self._new("", self._raw[: len(self._raw) - _held(self._raw, self._reading.stops)])
        lead = self._raw.lstrip()
        certain = lead[: len(lead) - _held(lead, (*self._reading.stops, OPEN, CLOSE))].rstrip()
        if not lead or OPEN.startswith(lead):
            return Delta()
        thinking, text = self._apart(certain)
        if self._reading.tools and (begin := CALL_BEGINS.search(text)) is not None:
            text = text[: begin.start()].rstrip()
        return self._new(thinking, text)

    def _new(self, thinking: str, text: str) -> Delta:
        sent = self._sent
        self._sent = Delta(max(thinking, sent.thinking, key=len), max(text, sent.text, key=len))
        return Delta(thinking[len(sent.thinking) :], text[len(sent.text) :])

    def _apart(self, certain: str) -> tuple[str, str]:
        if not self._opened and not certain.startswith(OPEN):
            return "", certain
        thought, _, rest = certain.partition(CLOSE)
        return _bare(thought), rest.strip()

    def _decode(self, ids: np.ndarray) -> None:
        """Decode the ids up to the first special one, a few at a time."""
        for token in ids[self._count :].tolist():
            self._closed = self._closed or token in self._special
            if not self._closed:
                self._count += 1
        decode = self._reading.tokenizer.decode
        known, whole = (decode(ids[self._prefix : stop].tolist()) for stop in (self._read, self._count))
        if len(whole) > len(known) and not whole.endswith(LOST):
            self._raw += whole[len(known) :]
            self._prefix, self._read = self._read, self._count


def _held(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of one of these marks."""
    sizes = [n for mark in marks for n in range(1, min(len(mark), len(text)) + 1) if text.endswith(mark[:n])]
    return max(sizes, default=0)
