"""Clients of chat models behind an endpoint with OpenAI's or Anthropic's protocol, and the errors of such an endpoint.

Addresses and keys come from environment variables, never from a recipe, and no error shows them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from palaestra.errors import EpisodeFailure, RecipeError, missing_extra

HIDDEN = "***"
SHOWN = 200  # characters of an endpoint's own message
Style = Literal["openai", "anthropic"]
VARIABLES: dict[Style, tuple[str, str]] = {  # of the address and the key
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How an endpoint is reached. Equal values are equal endpoints, so callers can share one client.

    Attributes:
        url: the address, ending in /v1. key: the secret that a request carries; empty: none.
        timeout_s: seconds for one answer.
        retries: further attempts after time-outs, full queues, faults of the server and lost connections. They wait as
            long as the server's header `Retry-After` says, up to a minute.
        style: the protocol.
    """

    url: str = field(repr=False)  # it may contain a password
    key: str = field(repr=False)
    timeout_s: float
    retries: int
    style: Style = "openai"

    def client(self) -> Any:
        """A new `openai.OpenAI` or `anthropic.Anthropic`. Threads may share it."""
        made = _package(self.style)
        return made.OpenAI(**self._options()) if self.style == "openai" else made.Anthropic(**self._options())

    def async_client(self) -> Any:
        """A new `openai.AsyncOpenAI` or `anthropic.AsyncAnthropic`, for one event loop."""
        made = _package(self.style)
        return made.AsyncOpenAI(**self._options()) if self.style == "openai" else made.AsyncAnthropic(**self._options())

    def _options(self) -> dict[str, Any]:
        # openai refuses an empty key, though an endpoint on this machine seldom wants one.
        key = self.key or "none"
        url = self.url if self.style == "openai" else self.url.rstrip("/").removesuffix("/v1")  # anthropic adds it
        return {"base_url": url, "api_key": key, "timeout": self.timeout_s, "max_retries": self.retries}

    @contextmanager
    def failures(self, *, boundary: str, where: str, what: str, endpoint: str = "the endpoint") -> Iterator[None]:
        """A context for one request: errors of the client become EpisodeFailure.

        Args:
            boundary: which part of an episode fails, such as "engine".
            where: who asks, and which model.
            what: the fault in words, such as "the endpoint gave no reply".
            endpoint: what the remedy calls it.

        Raises: EpisodeFailure, if the endpoint gives no answer after all attempts. The message has no key.
        """
        try:
            yield
        except self._errors() as error:
            said = f"{type(error).__name__}: {self._without_secrets(_in_words(error))[:SHOWN].rstrip('.')}"
            raise EpisodeFailure(
                boundary=boundary,
                where=where,
                what=f"{what}: {said}.",
                remedy=f"Check that {endpoint} is up. If it is only busy, raise `timeout_s` or `retries`.",
            ) from None  # the client's own error would show the key in a traceback, if the endpoint repeats it

    def _errors(self) -> Any:
        made = _package(self.style)
        return made.OpenAIError if self.style == "openai" else made.AnthropicError

    def _without_secrets(self, text: str) -> str:
        for secret in (self.key, urlsplit(self.url).password):
            if secret:
                text = text.replace(secret, HIDDEN)
        return text


def _in_words(error: Exception) -> str:
    """The status and the message of an endpoint's answer, in the same words for all versions of the clients."""
    body = vars(error).get("body")
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    status = vars(error).get("status_code")
    return f"status {status}: {message}" if status is not None and isinstance(message, str) else str(error)


def endpoint_from(
    url: str | None = None,
    key: str | None = None,
    *,
    timeout_s: float,
    retries: int,
    where: str,
    key_required: bool = False,
    style: Style = "openai",
) -> Endpoint:
    """The endpoint whose address and key these environment variables hold.

    Args:
        url, key: names of the environment variables. None: those of `VARIABLES` for the style.
        where: who asks, for errors.
        key_required: refuse an empty key.
        style: the protocol.

    Raises: RecipeError, if a variable is empty; MissingExtra, without the package openai or anthropic.
    """
    url, key = url or VARIABLES[style][0], key or VARIABLES[style][1]
    for name in (url, key) if key_required else (url,):
        if not os.environ.get(name):
            raise RecipeError(
                where=where,
                what=f"the environment variable {name} is empty.",
                remedy=f"Set it before the run: export {name}=…. A recipe never contains addresses or keys.",
            )
    require_package(style, where=where)
    return Endpoint(url=os.environ[url], key=os.environ.get(key, ""), timeout_s=timeout_s, retries=retries, style=style)


def require_package(style: Style, *, where: str) -> None:
    """Raises: MissingExtra, without the package that speaks this protocol."""
    try:
        _package(style)
    except ImportError as error:
        raise missing_extra(style, extra="serve", needed_for=where) from error


def _package(style: Style) -> Any:
    """The package openai or anthropic, which takes most of a second to import."""
    return importlib.import_module("openai") if style == "openai" else importlib.import_module("anthropic")
