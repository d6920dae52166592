"""A verifier that asks a chat model for a score, behind any endpoint with OpenAI's or Anthropic's protocol."""

from __future__ import annotations

import asyncio
import functools
import re
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Annotated, Any

import pydantic

from palaestra.endpoints import ChatRequest, Endpoint, Style, ask, endpoint_from
from palaestra.errors import EpisodeFailure, RecipeError
from palaestra.registry import NonNegative, Positive, PositiveInt, register

KEPT = 8192  # scores in the cache of a process
ASKED = """You grade replies. Judge only whether the reply is right.

Question:
{prompt}

Right answer:
{answer}

Reply:
{completion}

Write one line: `score: N`, where N is from 0 (wrong) to 10 (right)."""
SCORE = r"score\s*[:=]\s*\**\s*(-?\d+(?:\.\d+)?)"
PLACE = re.compile(r"\{(\w+)\}")


@register("verifier", "judge", extra="serve", modules=("openai",))
class Judge:
    """The score that a chat model gives the reply, in [0, 1].

    Equal requests are asked once per process. An answer without a score is asked again, and then fails the episode: it
    is never taken for a 0. Addresses and keys come from environment variables, never from a recipe.

    Args:
        model: name of the model at the endpoint.
        prompt: what it is asked, with places for `{prompt}`, `{completion}`, `{answer}` and other columns.
        pattern: regular expression whose first group is the score; the last match in the model's answer counts.
        best: the score that counts as 1. 0 counts as 0, and scores outside are clipped.
        style: the protocol: `openai` for chat completions, `anthropic` for messages.
        url, key: names of the environment variables that hold the address (ending in /v1) and the key. None:
            OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
        timeout_s: seconds for one answer.
        retries: further attempts after time-outs, full queues, lost connections and answers without a score.
        in_flight: most requests at once. Higher: faster, if the endpoint can serve them.
        temperature: of the judge. Usual: 0.
        max_tokens: most tokens of its answer.

    Raises: RecipeError, if the address is missing or the pattern cannot be used; MissingExtra, without openai or
        anthropic.
    """

    def __init__(
        self,
        *,
        model: str,
        prompt: str = ASKED,
        pattern: str = SCORE,
        best: Positive = 10.0,
        style: Style = "openai",
        url: str | None = None,
        key: str | None = None,
        timeout_s: Positive = 60.0,
        retries: Annotated[int, pydantic.Field(ge=0, le=10)] = 2,
        in_flight: PositiveInt = 16,
        temperature: NonNegative = 0.0,
        max_tokens: PositiveInt = 300,
    ) -> None:
        where = "verifier judge"
        endpoint = endpoint_from(url, key, timeout_s=timeout_s, retries=retries, where=f"{where}, url", style=style)
        try:
            groups = re.compile(pattern).groups
        except re.error:
            groups = 0
        if not groups:
            raise RecipeError(
                where=f"{where}, pattern",
                what=f"`{pattern}` is no regular expression with a group.",
                remedy=r"Write one such as `score: (\d+)`.",
            )
        self._prompt, self._pattern, self._best, self._retries, self._model = prompt, pattern, best, retries, model
        self._answers = answers_of(endpoint, in_flight)
        self._request = {"model": model, "temperature": temperature, "max_tokens": max_tokens}

    async def __call__(self, completion: str, prompt: Any, columns: Mapping[str, Any]) -> float:
        told = prompt if isinstance(prompt, str) else "\n".join(f"{one['role']}: {one['content']}" for one in prompt)
        known = {**columns, "prompt": told, "completion": completion}
        asked = PLACE.sub(lambda found: str(known.get(found[1], found[0])), self._prompt)
        answer = ""
        for attempt in range(self._retries + 1):
            answer = await self._answers.ask(asked, attempt, self._request)
            scores = re.findall(self._pattern, answer, re.IGNORECASE)
            score = scores[-1] if scores else None
            if score is not None:
                number = float(score if isinstance(score, str) else score[0])
                return min(max(number / self._best, 0.0), 1.0)
        raise EpisodeFailure(
            boundary="judge",
            where=f"verifier judge, model {self._model}",
            what=f"its answer has no score, in {self._retries + 1} attempts: {answer[:200]!r}.",
            remedy="Change `prompt` or `pattern`, or raise `max_tokens`.",
        )


class Answers:
    """Threads that ask one endpoint, and a cache of its answers. All episodes of a process share them."""

    def __init__(self, endpoint: Endpoint, in_flight: int) -> None:
        self._endpoint, self._client = endpoint, endpoint.client()
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="judge")
        self._answers: OrderedDict[Any, Future[str]] = OrderedDict()
        self._lock = Lock()

    async def ask(self, text: str, attempt: int, request: Mapping[str, Any]) -> str:
        """The model's answer. Equal requests of one attempt are asked once.

        Raises: EpisodeFailure of the boundary "judge", if the endpoint gives no answer.
        """
        key = (text, attempt, *request.items())
        with self._lock:
            waiting = self._answers.get(key)
            if waiting is None or (waiting.done() and (waiting.cancelled() or waiting.exception() is not None)):
                waiting = self._answers[key] = self._threads.submit(self._ask, text, dict(request))
            self._answers.move_to_end(key)
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return await asyncio.shield(asyncio.wrap_future(waiting))

    def _ask(self, text: str, request: dict[str, Any]) -> str:
        where = f"verifier judge, model {request['model']}"
        with self._endpoint.failures(boundary="judge", where=where, what="it gave no answer"):
            asked = ChatRequest(messages=[{"role": "user", "content": text}], **request)
            return ask(self._client, self._endpoint.style, asked).text


@functools.cache
def answers_of(endpoint: Endpoint, in_flight: int) -> Answers:
    """The answers of this endpoint, one object for a process."""
    return Answers(endpoint, in_flight)
