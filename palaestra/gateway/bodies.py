"""The bodies of answers, in OpenAI's form: whole ones, and the chunks of streams."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palaestra.gateway.faults import failed
from palaestra.gateway.replies import Delta, Reply, new_id
from palaestra.http.rules import Refusal

DONE = b"data: [DONE]\n\n"
Body = dict[str, Any]


class ChatForm:
    """Messages of a chat.

    Args:
        model: the name in the answer. logprobs: give the log-probability of each token.
        usage: end a stream with the numbers of tokens.
    """

    def __init__(self, model: str, *, logprobs: bool = False, usage: bool = False) -> None:
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model}
        self._logprobs, self._usage = logprobs, usage
        self._begun: set[int] = set()

    def whole(self, replies: Sequence[Reply]) -> Body:
        """The answer with all choices."""
        choices = [
            {
                "index": number,
                "message": _message(reply),
                "finish_reason": reply.finish,
                "logprobs": self._logprobs_of(reply),
            }
            for number, reply in enumerate(replies)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_of(replies)}

    def chunks(self, number: int, delta: Delta, reply: Reply | None) -> Iterator[bytes]:
        """The chunks of a stream for what is new of a choice, and for its end."""
        if number not in self._begun:
            self._begun.add(number)
            yield self._chunk(number, {"role": "assistant", "content": ""})
        if delta.thinking:
            yield self._chunk(number, {"reasoning_content": delta.thinking})
        if delta.text:
            yield self._chunk(number, {"content": delta.text})
        if reply is not None:
            if reply.calls:
                calls = [{"index": place, **call} for place, call in enumerate(_calls(reply))]
                yield self._chunk(number, {"tool_calls": calls})
            yield self._chunk(number, {}, reply)

    def last(self, replies: Sequence[Reply]) -> Iterator[bytes]:
        """The end of a stream."""
        if self._usage:
            yield event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(replies)})
        yield DONE

    def _chunk(self, number: int, delta: Body, reply: Reply | None = None) -> bytes:
        finish = None if reply is None else reply.finish
        logprobs = None if reply is None else self._logprobs_of(reply)
        choice = {"index": number, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})

    def _logprobs_of(self, reply: Reply) -> Body | None:
        if not self._logprobs:
            return None
        rows = [
            {"token": text, "logprob": number, "bytes": list(text.encode()), "top_logprobs": []}
            for text, number in _tokens(reply)
        ]
        return {"content": rows, "refusal": None}


class CompletionForm:
    """Continuations of texts. The arguments are those of `ChatForm`."""

    def __init__(self, model: str, *, logprobs: bool = False, usage: bool = False) -> None:
        self._head = {
            "id": new_id("cmpl-"),
            "created": int(time.time()),
            "model": model,
            "object": "text_completion",
        }
        self._logprobs, self._usage = logprobs, usage

    def whole(self, replies: Sequence[Reply]) -> Body:
        """The answer with all choices."""
        choices = [self._choice(number, reply.text, reply) for number, reply in enumerate(replies)]
        return {**self._head, "choices": choices, "usage": usage_of(replies)}

    def chunks(self, number: int, delta: Delta, reply: Reply | None) -> Iterator[bytes]:
        """The chunks of a stream for what is new of a choice, and for its end."""
        if delta.text or reply is not None:
            yield event({**self._head, "choices": [self._choice(number, delta.text, reply)]})

    def last(self, replies: Sequence[Reply]) -> Iterator[bytes]:
        """The end of a stream."""
        if self._usage:
            yield event({**self._head, "choices": [], "usage": usage_of(replies)})
        yield DONE

    def _choice(self, number: int, text: str, reply: Reply | None) -> Body:
        finish = None if reply is None else reply.finish
        logprobs = None if reply is None or not self._logprobs else _flat_logprobs(reply)
        return {"index": number, "text": text, "finish_reason": finish, "logprobs": logprobs}


Form = ChatForm | CompletionForm


def _message(reply: Reply) -> Body:
    message: Body = {"role": "assistant", "content": reply.text if reply.text or not reply.calls else None}
    message["refusal"] = None
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = _calls(reply)
    return message


def _calls(reply: Reply) -> list[Body]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in reply.calls
    ]


def _tokens(reply: Reply) -> list[tuple[str, float]]:
    """The text of each token that was drawn, and its log-probability."""
    return list(zip(reply.pieces, reply.logprobs.tolist(), strict=True))


def _flat_logprobs(reply: Reply) -> Body:
    tokens = _tokens(reply)
    offsets = [0, *itertools.accumulate(len(text) for text, _ in tokens)][: len(tokens)]
    return {
        "tokens": [text for text, _ in tokens],
        "token_logprobs": [number for _, number in tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def usage_of(replies: Sequence[Reply]) -> Body:
    """The numbers of tokens. Each prompt counts once, whatever the number of its choices."""
    prompts = {id(reply.prompt): reply.prompt_tokens for reply in replies}
    prompt, completion = sum(prompts.values()), sum(len(reply.tokens) for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def models_of(names: Sequence[str]) -> Body:
    """The answer of `/v1/models`."""
    return {"object": "list", "data": [model_of(name) for name in names]}


def model_of(name: str) -> Body:
    """The answer of `/v1/models/NAME`."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "palaestra"}


def event(body: Mapping[str, Any]) -> bytes:
    """An event of a stream."""
    return b"data: " + as_json(body) + b"\n\n"


def as_json(body: Mapping[str, Any]) -> bytes:
    """A body as it is sent. Characters beyond ASCII are escaped, since a model may write half of a surrogate pair."""
    return json.dumps(body).encode()


def error_event(error: Exception) -> bytes:
    """The event that ends a stream because of an error."""
    return event((error if isinstance(error, Refusal) else failed(f"{type(error).__name__}: {error}")).body)
