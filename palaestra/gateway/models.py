"""Served models: policies whose replies an engine generates, in an event loop of its own."""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from palaestra.chat import ChatRenderer, Renderer, TagRenderer
from palaestra.chat.history import Dialogue
from palaestra.chat.lengths import SHORT, ContextFull, Encoder
from palaestra.chat.messages import Message
from palaestra.data import Observation, derive
from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Engine, Request
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.gateway.backend import Backend, Event
from palaestra.gateway.faults import failed, too_long
from palaestra.gateway.loops import LoopThread, across
from palaestra.gateway.messages import for_template, read_messages
from palaestra.gateway.replies import Incoming, Reading
from palaestra.gateway.requests import MOST_CHOICES, ChatBody, CompletionBody, Sampled
from palaestra.gateway.sizes import Sizes, is_larger
from palaestra.http.rules import Refusal

# Tokens that are asked of the engine at once. Fewer: smoother streams. More: less work between two forward passes.
PIECE = 2
Read = TypeVar("Read")
SEEDS = 2**62
HALF = re.compile("[\ud800-\udfff]")  # of a character
USUAL_MOST, USUAL_COMPLETION = 1024, 16  # tokens of a message, and of a completion, whose request names no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A policy and its engine.

    Attributes:
        policy: the engine's name of the policy. context: the most ids of a prompt and its reply.
        usual_most: tokens of a reply whose request names no limit.
    """

    policy: str
    engine: Engine
    renderer: Renderer
    tokenizer: Any
    context: int
    usual_most: int = USUAL_MOST

    def most(self, prompt: int, wanted: int | None, *, usual: int | None = None) -> int:
        """The most tokens of a reply. Raises: Refusal, if the context has no room for it.

        Args:
            prompt: number of ids before it. wanted: that the request names. usual: if it names none.
        """
        room = self.context - prompt
        if room < 1 or (wanted or 0) > room:
            raise too_long(prompt, wanted, self.context)
        return min(usual or self.usual_most, room) if wanted is None else wanted


class ServedModels(Backend):
    """Answers requests with these models. A request carries its whole chat, and nothing of it is kept afterwards."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = dict(models)
        self._encoders = {name: _encoder_of(model) for name, model in models.items()}
        self._thread = LoopThread("palaestra engine")
        self._reader = ThreadPoolExecutor(1, "palaestra reader")
        self._sessions = itertools.count()

    def names(self) -> Sequence[str]:
        """The models, by the names that requests use."""
        return tuple(self._models)

    def close(self) -> None:
        """End all replies in progress."""
        self._thread.stop()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def sizes(self) -> Sizes:
        """The most of a prompt; of several models, that of the one that takes most."""
        sizes = [Sizes(model.context, model.renderer.encoder.longest) for model in self._models.values()]
        return max(sizes, key=lambda one: one.letters)

    def chat(self, body: ChatBody) -> AsyncIterator[Event]:
        """The next message of a chat."""
        return across(self._thread.loop, lambda: self._chat(body))

    def complete(self, body: CompletionBody) -> AsyncIterator[Event]:
        """Continuations of each prompt."""
        return across(self._thread.loop, lambda: self._complete(body))

    async def _chat(self, body: ChatBody) -> AsyncIterator[Event]:
        model = self._named(body.sampled.model)
        tools = body.tools if body.tool_choice != "none" else []
        prompt = await self._read(
            model,
            [body.messages, tools],
            lambda: prompt_of(model.renderer, read_messages(body.messages), tools, body.chat_template_kwargs),
        )
        reading = Reading(
            renderer=model.renderer,
            tokenizer=model.tokenizer,
            prompt=prompt,
            prompt_tokens=len(prompt),
            tools=tools,
            several=body.parallel_tool_calls,
            stops=body.sampled.stops,
            pieces=body.logprobs,
        )
        most, seed = model.most(len(prompt), body.most), _seed(body.sampled)
        choices = [self._reply(model, body.sampled, reading, most, derive(seed, n)) for n in range(body.sampled.n)]
        async for event in together(choices):
            yield event

    async def _complete(self, body: CompletionBody) -> AsyncIterator[Event]:
        model, seed = self._named(body.sampled.model), _seed(body.sampled)
        encoder = self._encoders[body.sampled.model or next(iter(self._models))]
        prompts = await self._read(model, body.prompt, lambda: _prompts(body, model, encoder))
        choices: list[AsyncIterator[Any]] = []
        for place, prompt in enumerate(prompts):
            reading = Reading(
                renderer=model.renderer,
                tokenizer=model.tokenizer,
                prompt=prompt,
                prompt_tokens=len(prompt),
                stops=body.sampled.stops,
                plain=True,
                pieces=body.logprobs is not None,
            )
            most = model.most(len(prompt), body.sampled.max_tokens, usual=USUAL_COMPLETION)
            choices += [
                self._reply(model, body.sampled, reading, most, derive(seed, place, n)) for n in range(body.sampled.n)
            ]
        async for event in together(choices):
            yield event

    async def _read(self, model: ServedModel, given: Any, read: Callable[[], Read]) -> Read:
        """Make prompts. A thread makes large ones, one after the other, so that replies go on meanwhile.

        Raises: Refusal, if they have too many characters for the context, or if the tokenizer fails.
        """
        try:
            if is_larger(given, SHORT):
                return await asyncio.get_running_loop().run_in_executor(self._reader, read)
            return read()
        except ContextFull:
            raise too_long(None, None, model.context) from None
        except EpisodeFailure as error:
            raise failed(error.what) from error

    def _named(self, name: str | None) -> ServedModel:
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if name not in self._models:
            raise Refusal(
                f"there is no model {name!r}. The server has: {', '.join(self._models)}.",
                status=404,
                code="model_not_found",
                param="model",
            )
        return self._models[name]

    async def _reply(
        self, model: ServedModel, body: Sampled, reading: Reading, most: int, seed: int
    ) -> AsyncIterator[Any]:
        """The deltas of one choice, if the request streams, and then its reply."""
        incoming = Incoming(reading) if body.stream else None
        session = ("served", next(self._sessions))
        ids, logprobs = np.zeros(0, np.int32), np.zeros(0, np.float32)
        prompt = reading.prompt
        try:
            for number in itertools.count():
                action = await self._piece(
                    model,
                    Request(
                        policy=model.policy,
                        session=session,
                        prompt=prompt,
                        seed=derive(seed, number),
                        max_tokens=min(PIECE, most - len(ids)),
                        temperature=body.temperature,
                        top_k=body.top_k,
                        top_p=body.top_p,
                        stop=model.renderer.stop,
                    ),
                )
                prompt = np.zeros(0, np.int32)
                ids, logprobs = np.append(ids, action.tokens), np.append(logprobs, action.logprobs)
                count = reading.stopped(ids, new=len(action.tokens))
                if count is not None:
                    yield reading.read(ids[:count], logprobs[:count], FinishReason.STOP, stopped=True)
                    return
                if action.finish is not FinishReason.LENGTH or len(ids) >= most:
                    yield reading.read(ids, logprobs, action.finish)
                    return
                if incoming is not None:
                    yield incoming.push(ids)
        finally:
            model.engine.close(session)

    async def _piece(self, model: ServedModel, request: Request) -> Any:
        try:
            return (await model.engine.generate(request)).action
        except PalaestraError as error:
            raise failed(f"{error.what} {error.remedy}".strip()) from error


async def together(choices: Sequence[AsyncIterator[Any]]) -> AsyncIterator[Event]:
    """The events of several choices as they come, each with the number of its choice."""
    arrived: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    async def follow(number: int, events: AsyncIterator[Any]) -> None:
        try:
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    arrived.put_nowait((number, event))
            arrived.put_nowait(None)
        except Exception as error:
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(follow(number, events)) for number, events in enumerate(choices)]
    try:
        left = len(tasks)
        while left:
            event = await arrived.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                left -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def prompt_of(
    renderer: Renderer, said: Sequence[Message], tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> np.ndarray:
    """The ids of a chat after which the model speaks. Raises: Refusal, if the model cannot read it; ContextFull."""
    if isinstance(renderer, TagRenderer):
        return _in_tags(renderer, said, tools, variables)
    assert isinstance(renderer, ChatRenderer)
    try:
        renderer.refuse_unknown(variables)
        messages = for_template(said)
        shown = Observation(messages=messages, tools=list(tools) or None)
        return Dialogue(renderer, variables=variables).observe(shown).ids
    except ContextFull:
        raise
    except PalaestraError as error:
        raise Refusal(error.what, param="messages") from error
    except Exception as error:  # a template may refuse a dialogue by any exception
        raise Refusal(f"the model's chat template cannot write these messages: {error}.", param="messages") from error


def _in_tags(
    renderer: TagRenderer, said: Sequence[Message], tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> np.ndarray:
    """The ids for a model without a chat template, which knows observations and actions."""
    if tools or variables:
        what = "declares no tools" if tools else "has no variables of a template"
        raise Refusal(f"the model has no chat template, so it {what}.", param="tools" if tools else None)
    pieces = []
    for place, one in enumerate(said):
        if one.role == "assistant":
            pieces.append(renderer.action(one.text))
        elif one.role in ("system", "developer") and place == 0 and len(said) > 1:
            pieces.append(renderer.instruction(one.text))
        else:
            pieces.append(renderer.observation(Observation(text=one.text), first=place == 0))
    return np.concatenate(pieces)


def _encoder_of(model: ServedModel) -> Encoder:
    """Encodes texts of completions. It is a copy, since the tokenizer itself cannot be used in two threads at once."""
    copied = copy.deepcopy(model.tokenizer.backend_tokenizer)
    copied.encode_special_tokens = False
    encoder = Encoder(copied)
    encoder.limit = model.context
    return encoder


def _prompts(body: CompletionBody, model: ServedModel, encoder: Encoder) -> list[np.ndarray]:
    """The ids of each prompt of a request. Raises: Refusal; ContextFull."""
    given: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if isinstance(given[0], int):
        given = [given]
    if len(given) * body.sampled.n > MOST_CHOICES:
        raise Refusal(f"the request asks for {len(given) * body.sampled.n} texts; at most {MOST_CHOICES}.", param="n")
    return [_prompt(one, model, encoder, special=body.add_special_tokens) for one in given]


def _prompt(given: Any, model: ServedModel, encoder: Encoder, *, special: bool) -> np.ndarray:
    """The ids of a text, or of a list of ids."""
    size, ids = len(model.tokenizer), given
    if isinstance(given, str):
        if HALF.search(given):
            raise Refusal("the prompt has half of a character (a lone surrogate).", param="prompt")
        ids = encoder.encode(given, special=special).ids
    elif isinstance(given, list):
        model.most(len(given), None)  # too many are refused before each is checked
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < size for i in ids):
        what = f"a prompt must be a text, or a list of ids between 0 and {size - 1}, and it needs at least one."
        raise Refusal(what, param="prompt")
    return np.array(ids, np.int32)


def _seed(body: Sampled) -> int:
    return secrets.randbelow(SEEDS) if body.seed is None else body.seed
