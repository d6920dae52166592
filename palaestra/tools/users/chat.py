"""A chat model that plays the user, behind any endpoint with OpenAI's or Anthropic's protocol.

Keys and addresses come from environment variables, never from a recipe.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic

from palaestra.endpoints import ChatRequest, Style, ask_async, endpoint_from
from palaestra.endpoints.clients import VARIABLES
from palaestra.errors import EpisodeFailure
from palaestra.registry import NonNegative, Positive, Section
from palaestra.tools.users.brief import STOP, Brief, Said

WHERE = "a user played by a chat model"  # for errors
GREETING = "Hi! How can I help you today?"
PART = """You play a customer who talks to a service agent. Stay in your part.
{scenario}

- Say one short thing in each turn, and only what you were asked.
- Tell no fact before you are asked for it, and invent none: what is not above you do not know.
- Do not say everything at once; bring up one wish after the other.
- Answer yes or no when you are asked to confirm something: yes only if it is exactly what you want.
- When all wishes are settled, or were refused, write {stop} and nothing else."""


class ChatSettings(Section):
    """Which model plays the user, and how it is reached.

    Attributes:
        model: name of the model at the endpoint.
        style: the protocol: `openai` for chat completions, `anthropic` for messages.
        url, key: names of the environment variables that hold the address (ending in /v1) and the key. None:
            OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
        timeout_s: seconds for one answer. retries: further attempts after time-outs, full queues and lost connections.
        temperature: sampling temperature of the answers. Usual: 0 to 1. max_tokens: most tokens of one answer.
    """

    model: str
    style: Style = "openai"
    url: str | None = None
    key: str | None = None
    timeout_s: Positive = 30.0
    retries: Annotated[int, pydantic.Field(ge=0, le=10)] = 2
    temperature: NonNegative = 0.7
    max_tokens: Annotated[int, pydantic.Field(gt=0)] = 200


class ChatUser:
    """A user played by a chat model. `told` stays empty, because nobody checks which facts the model has said.

    Raises: RecipeError, if an environment variable is empty; MissingExtra, without the package openai or anthropic;
        EpisodeFailure of the boundary "environment", for a call that fails after all attempts or an answer without
        text.
    """

    told: Mapping[str, str] = {}

    def __init__(self, settings: ChatSettings) -> None:
        self._settings = settings
        self._endpoint = endpoint_from(
            settings.url,
            settings.key,
            timeout_s=settings.timeout_s,
            retries=settings.retries,
            where=WHERE,
            key_required=True,
            style=settings.style,
        )
        self._client: Any = None
        self._messages: list[dict[str, str]] = []

    async def begin(self, brief: Brief) -> Said:
        """The first turn, which answers a greeting."""
        self._messages = [{"role": "system", "content": PART.format(scenario=brief.scenario(), stop=STOP)}]
        return await self.reply(GREETING)

    async def reply(self, text: str) -> Said:
        """The model's answer. The dialogue is over if the answer contains STOP."""
        asked = [*self._messages, {"role": "user", "content": text}]  # for the model, the agent is the user
        answer = await self._ask(asked)
        self._messages = [*asked, {"role": "assistant", "content": answer}]
        return Said(answer, STOP in answer)

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def snapshot(self) -> Any:
        return copy.deepcopy(self._messages)

    def restore(self, state: Any) -> None:
        self._messages = copy.deepcopy(state)

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        chosen = self._settings
        if self._client is None:
            self._client = self._endpoint.async_client()
        what = f"the model {chosen.model} gave no answer"
        address = f"the endpoint in ${chosen.url or VARIABLES[chosen.style][0]}"
        with self._endpoint.failures(boundary="environment", where=WHERE, what=what, endpoint=address):
            asked = ChatRequest(
                model=chosen.model,
                messages=messages,
                temperature=chosen.temperature,
                max_tokens=chosen.max_tokens,
            )
            answer = (await ask_async(self._client, chosen.style, asked)).text.strip()
        if not answer:
            raise EpisodeFailure(
                boundary="environment",
                where=WHERE,
                what=f"the model {chosen.model} gave an empty answer.",
                remedy=f"Check that {address} is up. If it is only busy, raise `timeout_s` or `retries`.",
            )
        return answer
