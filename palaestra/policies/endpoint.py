"""A policy that is a chat model behind any endpoint with OpenAI's protocol. It plays and is not trained."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from threading import Lock
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.chat import FullHistory, LatestOnly
from palaestra.chat.template_tools import in_words
from palaestra.data import Action, NextPrompt, Observation, RunSetup
from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.endpoints import endpoint_from
from palaestra.errors import EpisodeFailure, RecipeError
from palaestra.models.pictures import opened
from palaestra.registry import Positive, PositiveInt, register

Messages = list[dict[str, Any]]


@register("policy", "endpoint", extra="serve", modules=("openai",))
class EndpointPolicy(Policy):
    """Answer observations with a chat model behind any endpoint with OpenAI's protocol: vLLM, SGLang, Ollama, OpenAI.

    It can be evaluated, and it can play beside a policy that learns. It is not trained: give it `trainable: false`. Its
    replies have no token ids. Set `instruction: environment` for its role, so that it reads the environment's rules as
    its system message. Its context is `full_history` or `latest_only`.
    """

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        model: str,
        url: str = "OPENAI_BASE_URL",
        key: str = "OPENAI_API_KEY",
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
            url, key: names of the environment variables that hold the address (ending in /v1) and the key.
            timeout_s: seconds for one reply.
            retries: further attempts after time-outs, full queues and lost connections.
            in_flight: most requests at once. Higher: faster, if the endpoint can serve them.
            pictures: send the image of an observation, as a PNG file in the message. The model must read images.

        Raises: RecipeError, if the address is missing; MissingExtra, without openai.
        """
        where = f"policies.{name}, endpoint"
        self._endpoint = endpoint_from(url, key, timeout_s=timeout_s, retries=retries, where=where)
        self._client = self._endpoint.client()
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="endpoint")
        self._lock = Lock()
        self.name, self.trainable, self.version, self._model, self.sends_pictures = name, False, 0, model, pictures
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

    async def reply(self, messages: Sequence[dict[str, Any]], sampling: Sampling, seed: int) -> Action:
        """The model's reply. Raises: EpisodeFailure of the boundary "engine", if the endpoint gives none."""
        return await asyncio.wrap_future(self._threads.submit(self._ask, list(messages), sampling, seed))

    def _ask(self, messages: Messages, sampling: Sampling, seed: int) -> Action:
        where = f"policy {self.name}, model {self._model}"
        with self._endpoint.failures(boundary="engine", where=where, what="the endpoint gave no reply"):
            done = self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=seed % 2**31,
            )
        with self._lock:
            self.generated += done.usage.completion_tokens if done.usage else 0
        choice = done.choices[0] if done.choices else None
        cut = choice is not None and choice.finish_reason == "length"
        text = (choice.message.content if choice else None) or ""
        return Action(text=text, finish=FinishReason.LENGTH if cut else FinishReason.STOP)


@dataclass(slots=True)
class EndpointSession(Session):
    """One agent's conversation with the endpoint, as messages. Tools of the role are declared in words."""

    policy: EndpointPolicy
    sampling: Sampling
    latest_only: bool
    messages: Messages = field(default_factory=list)
    words: str = ""  # the declaration of the role's tools

    async def act(self, observation: Observation, *, seed: int) -> Response:
        self._read(observation)
        return self._said(await self.policy.reply(self.messages, self.sampling, seed))

    def record(self, observation: Observation, action: Action) -> Response:
        self._read(observation)
        return self._said(action)

    def fork(self, key: Hashable) -> EndpointSession:
        """A copy that continues from here."""
        return replace(self, messages=list(self.messages))

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None

    def _read(self, observation: Observation) -> None:
        """Add what the agent sees. The instruction becomes the system message, once."""
        if observation.tools:
            self.words = in_words(observation.tools)
        if self.latest_only or not self.messages:
            head = [message for message in self.messages[:1] if message["role"] == "system"]
            told = "\n\n".join(filter(None, (observation.instruction, self.words)))
            self.messages = [{"role": "system", "content": told}] if told else head
        own = [{"role": one["role"], "content": one["content"]} for one in observation.messages or ()]
        if not own or any(one["role"] == "tool" for one in own):  # without calls of the protocol, a result is a text
            own = [{"role": "user", "content": observation.text or ""}]
        if own[0]["role"] == "system" and [one["role"] for one in self.messages] == ["system"]:
            own[0] = {**own[0], "content": f"{self.messages[0]['content']}\n\n{own[0]['content']}"}
            self.messages = []
        self.messages = [*self.messages, *own]
        if observation.image is not None and self.policy.sends_pictures:
            self.messages[-1] = with_image(self.messages[-1], observation.image)
        elif observation.image is not None and observation.text is None and not observation.messages:
            raise EpisodeFailure(
                boundary="environment",
                where=f"policy {self.policy.name}",
                what="an observation is an image without a text, and the policy sends no images.",
                remedy=f"Set `policies.{self.policy.name}.policy.endpoint.pictures: true`, if the model reads images.",
            )

    def _said(self, action: Action) -> Response:
        self.messages = [*self.messages, {"role": "assistant", "content": action.text or ""}]
        return Response(action=action)


def with_image(message: Mapping[str, Any], image: np.ndarray) -> dict[str, Any]:
    """A message with an image before its text, as a data URL of a PNG file."""
    file = BytesIO()
    opened(image).save(file, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    words = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {**message, "content": [{"type": "image_url", "image_url": {"url": url}}, *words]}
