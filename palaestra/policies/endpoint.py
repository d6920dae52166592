"""A policy that is a chat model behind an endpoint with OpenAI's or Anthropic's protocol. It is not trained."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from threading import Lock
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from palaestra.chat import FullHistory, LatestOnly
from palaestra.chat.places import PLACE, placed
from palaestra.chat.reply_calls import calls_of
from palaestra.chat.template_tools import call_in_words, in_words, result_of, without_results
from palaestra.data import Action, NextPrompt, Observation, RunSetup
from palaestra.data.interaction import FinishReason, ToolCall
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.endpoints import Call, ChatRequest, Endpoint, Reply, Style, ask, endpoint_from, require_package
from palaestra.endpoints.clients import VARIABLES
from palaestra.endpoints.replies import PNG, call_message
from palaestra.errors import EpisodeFailure, RecipeError
from palaestra.models.pictures import opened
from palaestra.registry import Positive, PositiveInt, register

Messages = list[dict[str, Any]]
Tools = tuple[Mapping[str, Any], ...]
NO_RESULT = "(see the last result)"  # of a call beside another one, which the environment has answered together


@register("policy", "endpoint", extra="serve", modules=("openai",))
class EndpointPolicy(Policy):
    """Answer observations with a chat model behind an endpoint: vLLM, SGLang, Ollama, OpenAI, Anthropic.

    It can be evaluated, and it can play beside a policy that learns. It is not trained: give it `trainable: false`. Its
    replies have no token ids. Set `instruction: environment` for its role, so that it reads the environment's rules as
    its system message. Its context is `full_history` or `latest_only`.
    """

    chat_model, waits = True, True  # what it declares (palaestra.registry)

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        model: str,
        style: Style = "openai",
        url: str | None = None,
        key: str | None = None,
        tools: Literal["api", "words"] = "api",
        timeout_s: Positive = 120.0,
        retries: Annotated[int, pydantic.Field(ge=0, le=10)] = 2,
        in_flight: PositiveInt = 16,
        pictures: bool = False,
    ) -> None:
        """
        Args:
            name: the name in the recipe.
            setup: of the run.
            model: name of the model at the endpoint.
            style: the protocol: `openai` for chat completions, `anthropic` for messages.
            url, key: names of the environment variables that hold the address (ending in /v1) and the key. None:
                OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
            tools: how a role with native tools declares them: `api`, in the request; `words`, in the system message,
                for a server that takes none. The model then writes its calls and reads their results in words, too.
            timeout_s: seconds for one reply.
            retries: further attempts after time-outs, full queues, faults of the server and lost connections.
            in_flight: most requests at once. Higher: faster, if the endpoint can serve them.
            pictures: send the images of observations and of their messages, as PNG files. The model must read images.

        Raises: RecipeError, if the address is missing; MissingExtra, without openai or anthropic.
        """
        where = f"policies.{name}, endpoint"
        endpoint = endpoint_from(url, key, timeout_s=timeout_s, retries=retries, where=where, style=style)
        self._open(name, endpoint, model=model, tools=tools, in_flight=in_flight, pictures=pictures)

    @classmethod
    def at(
        cls,
        url: str,
        model: str,
        *,
        key: str | None = None,
        style: Style = "openai",
        name: str = "main",
        tools: Literal["api", "words"] = "api",
        timeout_s: float = 120.0,
        retries: int = 2,
        in_flight: int = 16,
        pictures: bool = False,
    ) -> EndpointPolicy:
        """A policy for this address, outside of a recipe.

        Args:
            url: the address, ending in /v1. model: name of the model there.
            key: name of the environment variable that holds the key. None: OPENAI_API_KEY or ANTHROPIC_API_KEY.
            name: of the policy. The others are options of the recipe.

        Raises: MissingExtra, without openai or anthropic.
        """
        require_package(style, where=f"policies.{name}, endpoint")
        secret = os.environ.get(key or VARIABLES[style][1], "")
        endpoint = Endpoint(url=url, key=secret, timeout_s=timeout_s, retries=retries, style=style)
        made = cls.__new__(cls)
        made._open(name, endpoint, model=model, tools=tools, in_flight=in_flight, pictures=pictures)
        return made

    def _open(self, name: str, endpoint: Endpoint, *, model: str, tools: str, in_flight: int, pictures: bool) -> None:
        self._endpoint, self._client = endpoint, endpoint.client()
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="endpoint")
        self._lock = Lock()
        self.name, self.trainable, self.version, self._model, self.sends_pictures = name, False, 0, model, pictures
        self.declares_tools = tools == "api"
        self.generated = 0  # tokens of all replies, as the endpoint counts them

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> EndpointSession:
        """The session of one agent. Raises: RecipeError, for a context that it cannot follow."""
        if not isinstance(context, FullHistory | LatestOnly | None):
            raise RecipeError(
                where=f"policies.{self.name}, endpoint",
                what=f"it cannot follow the context {type(context).__name__}, which counts token ids.",
                remedy="Give its role `context: full_history` or `context: latest_only`.",
            )
        return EndpointSession(self, sampling, latest_only=isinstance(context, LatestOnly))

    async def reply(self, messages: Sequence[dict[str, Any]], tools: Tools, sampling: Sampling, seed: int) -> Reply:
        """The model's reply. Raises: EpisodeFailure of the boundary "engine", if the endpoint gives none."""
        return await asyncio.wrap_future(self._threads.submit(self._ask, list(messages), tools, sampling, seed))

    def _ask(self, messages: Messages, tools: Tools, sampling: Sampling, seed: int) -> Reply:
        where = f"policy {self.name}, model {self._model}"
        asked = ChatRequest(
            model=self._model,
            messages=messages,
            tools=tools,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=seed,
        )
        with self._endpoint.failures(boundary="engine", where=where, what="the endpoint gave no reply"):
            said = ask(self._client, self._endpoint.style, asked)
        with self._lock:
            self.generated += said.tokens
        return said


@dataclass(slots=True)
class EndpointSession(Session):
    """One agent's conversation with the endpoint, as messages. Calls of tools stand in a reply's text as words too.

    Attributes:
        words: the declaration of the role's tools in words. tools: those that requests declare.
        waiting: calls in the last reply, whose results the endpoint must read next.
        called: whether the last reply calls tools in words, so that the next text of the environment is a result.
        calls: how many calls of the protocol there were.
    """

    policy: EndpointPolicy
    sampling: Sampling
    latest_only: bool
    messages: Messages = field(default_factory=list)
    words: str = ""
    tools: Tools = ()
    waiting: tuple[str, ...] = ()
    called: bool = False
    calls: int = 0

    async def act(self, observation: Observation, *, seed: int) -> Response:
        self._read(observation)
        reply = await self.policy.reply(self.messages, self.tools, self.sampling, seed)
        self._note(reply)
        text = "\n".join([reply.text, *map(_in_words, reply.calls)]).strip()  # as language policies read their replies
        return Response(action=Action(text=text, finish=FinishReason.LENGTH if reply.cut else FinishReason.STOP))

    def record(self, observation: Observation, action: Action) -> Response:
        self._read(observation)
        calls: tuple[Call, ...] = ()
        text = action.text or ""
        if self.tools and action.tool_calls:
            made = enumerate(action.tool_calls, start=self.calls)
            calls = tuple(Call(f"call{n:05d}", one.name, json.dumps(dict(one.arguments))) for n, one in made)
            text = ""
        elif self.words and action.tool_calls:
            text = "\n".join(map(call_in_words, action.tool_calls))
        self._note(Reply(text, calls, False, 0))
        return Response(action=action)

    def fork(self, key: Hashable) -> EndpointSession:
        """A copy that continues from here."""
        return replace(self, messages=list(self.messages))

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None

    def _read(self, observation: Observation) -> None:
        """Add what the agent sees. The instruction becomes the system message, once."""
        if observation.tools and self.policy.declares_tools:
            self.tools = tuple(observation.tools)
        elif observation.tools:
            self.words = in_words(observation.tools)
        if self.latest_only or not self.messages:
            head = [message for message in self.messages[:1] if message["role"] == "system"]
            told = "\n\n".join(filter(None, (observation.instruction, self.words)))
            self.messages = [{"role": "system", "content": told}] if told else head
            self.waiting, self.called = (), False
        own = self._turn(observation)
        if own[0]["role"] == "system" and [one["role"] for one in self.messages] == ["system"]:
            own[0] = {**own[0], "content": f"{self.messages[0]['content']}\n\n{own[0]['content']}"}
            self.messages = []
        self.messages, self.waiting, self.called = [*self.messages, *own], (), False
        if observation.image is not None and self.policy.sends_pictures:
            if self.messages[-1]["role"] == "tool":  # a result has no images
                self.messages.append({"role": "user", "content": ""})
            self.messages[-1] = with_images(self.messages[-1], (observation.image,))
        elif not self.policy.sends_pictures:
            self._refuse_images(observation)

    def _refuse_images(self, observation: Observation) -> None:
        """Raises: EpisodeFailure, for an observation that cannot be read without its images, which are not sent."""
        pictured = any(one.get("pictures") for one in observation.messages or ())
        if observation.text is not None or not (observation.image is not None or pictured):
            return
        has = "has images in its messages" if observation.messages else "is an image without a text"
        raise EpisodeFailure(
            boundary="environment",
            where=f"policy {self.policy.name}",
            what=f"an observation {has}, and the policy sends no images.",
            remedy=f"Set `policies.{self.policy.name}.policy.endpoint.pictures: true`, if the model reads images.",
        )

    def _message(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A message of an observation, with its images at their places if the policy sends images."""
        plain = {"role": given["role"], "content": str(given["content"])}
        pictures = given.get("pictures", ())
        if not pictures:
            return plain
        if not self.policy.sends_pictures:
            return {**plain, "content": plain["content"].replace(PLACE, "")}
        return with_images({**plain, "content": placed(given)}, pictures)

    def _turn(self, observation: Observation) -> Messages:
        """The messages of an observation. If the last reply calls tools, it begins with their results."""
        if not self.waiting and any(one.get("tool_calls") for one in observation.messages or ()):
            return self._past(observation.messages or ())
        given = [self._message(one) for one in observation.messages or ()]
        results = [one["content"] for one in given if one["role"] == "tool"]
        plain = [{"role": "user", "content": observation.text or ""}]
        if not self.waiting and not self.called:  # a result without a call is a text
            return plain if results or not given else given
        rest = [one for one in given if one["role"] != "tool"]
        answered = not results and [one["role"] for one in rest] in ([], ["user"])  # by the environment
        if self.called and answered:
            return _results_in_words([(rest or plain)[0]["content"]])
        if self.called:
            return [*_results_in_words(results), *rest]
        if answered:
            text, images = _apart((rest or plain)[0]["content"])
            results = [*[NO_RESULT] * (len(self.waiting) - 1), text]
            rest = [{"role": "user", "content": images}] if images else []  # a result has no images
        results += [results[0] if results else NO_RESULT] * (len(self.waiting) - len(results))
        pairs = zip(self.waiting, results, strict=False)
        return [*({"role": "tool", "tool_call_id": number, "content": text} for number, text in pairs), *rest]

    def _past(self, given: Sequence[Mapping[str, Any]]) -> Messages:
        """Messages with calls and their results, such as the history in a row of a data set."""
        shown: Messages = []
        ids: list[str] = []  # of the calls whose results come next
        for one in given:
            message = self._message(one)
            calls = [call["function"] for call in one.get("tool_calls") or ()]
            if one["role"] == "tool" and ids:
                number = one.get("tool_call_id")
                message["tool_call_id"] = ids.pop(ids.index(number) if number in ids else 0)
            elif one["role"] == "tool":  # tools are declared in words
                (message,) = _results_in_words([message["content"]])
            elif calls and self.policy.declares_tools:
                ids = [call.get("id") or f"past{len(shown):05d}{n:02d}" for n, call in enumerate(one["tool_calls"])]
                texts = [json.dumps(call["arguments"], ensure_ascii=False) for call in calls]
                made = [Call(number, call["name"], text) for number, call, text in zip(ids, calls, texts, strict=True)]
                message["tool_calls"] = [call_message(call) for call in made]
            elif calls:
                written = [call_in_words(ToolCall(name=call["name"], arguments=call["arguments"])) for call in calls]
                message["content"] = "\n".join([message["content"], *written]).strip()
            shown.append(message)
        return shown

    def _note(self, reply: Reply) -> None:
        self.messages = [*self.messages, reply.message()]
        self.waiting = tuple(call.id for call in reply.calls)
        self.calls += len(reply.calls)
        if self.words and not self.waiting:
            parsed = calls_of(reply.text)
            self.called = bool(parsed.calls) or parsed.fault is not None


def _in_words(call: Call) -> str:
    """A call as a role reads it. Broken arguments stay as they are, so that the role says what is wrong."""
    arguments = call.arguments
    with contextlib.suppress(ValueError):
        arguments = json.loads(call.arguments)
    if isinstance(arguments, dict):
        return call_in_words(ToolCall(name=call.name, arguments=arguments))
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def _results_in_words(results: Sequence[str | list[dict[str, Any]]]) -> Messages:
    """The results of calls as a message of the user, with their images behind the text."""
    told = [_apart(content) for content in results]
    made = without_results([result_of(text) for text, _ in told])
    images = [image for _, some in told for image in some]
    return [{**one, "content": [{"type": "text", "text": one["content"]}, *images]} for one in made] if images else made


def _apart(content: str | list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The text of a content, and its images."""
    if isinstance(content, str):
        return content, []
    text = "\n".join(one["text"] for one in content if one["type"] == "text")
    return text, [one for one in content if one["type"] != "text"]


def with_images(message: Mapping[str, Any], images: Sequence[np.ndarray]) -> dict[str, Any]:
    """A message with images as parts of its content. They stand at the places of its text, and else before it."""
    content = message["content"]
    parts: Messages = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    text = content if isinstance(content, str) else ""
    if text.count(PLACE) != len(images):
        return {**message, "content": [*map(_part, images), *(one for one in parts if one.get("text") != "")]}
    before, *after = text.split(PLACE)
    pieces: Messages = [{"type": "text", "text": before}]
    for image, words in zip(images, after, strict=True):
        pieces += [_part(image), {"type": "text", "text": words}]
    return {**message, "content": [one for one in pieces if one.get("text") != ""]}


def _part(image: np.ndarray) -> dict[str, Any]:
    """An image as a data URL of a PNG file."""
    file = BytesIO()
    opened(image).save(file, format="PNG")
    return {"type": "image_url", "image_url": {"url": f"{PNG}{base64.b64encode(file.getvalue()).decode()}"}}
