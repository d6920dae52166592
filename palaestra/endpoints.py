"""Clients of chat models behind any endpoint with OpenAI's protocol, and the errors of such an endpoint.

Addresses and keys come from environment variables, never from a recipe, and no error shows them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from palaestra.errors import EpisodeFailure, RecipeError, missing_extra

HIDDEN = "***"
SHOWN = 200  # characters of an endpoint's own message


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How an endpoint is reached. Equal values are equal endpoints, so callers can share one client.

    Attributes:
        url: the address, ending in /v1. key: the secret that a request carries; empty: none.
        timeout_s: seconds for one answer.
        retries: further attempts after time-outs, full queues and lost connections.
    """

    url: str = field(repr=False)  # it may contain a password
    key: str = field(repr=False)
    timeout_s: float
    retries: int

    def client(self) -> Any:
        """A new `openai.OpenAI`. Threads may share it."""
        return _openai().OpenAI(**self._options())

    def async_client(self) -> Any:
        """A new `openai.AsyncOpenAI`, for one event loop."""
        return _openai().AsyncOpenAI(**self._options())

    def _options(self) -> dict[str, Any]:
        # openai refuses an empty key, though an endpoint on this machine seldom wants one.
        key = self.key or "none"
        return {"base_url": self.url, "api_key": key, "timeout": self.timeout_s, "max_retries": self.retries}

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
        except _openai().OpenAIError as error:
            said = f"{type(error).__name__}: {self._without_secrets(str(error))[:SHOWN].rstrip('.')}"
            raise EpisodeFailure(
                boundary=boundary,
                where=where,
                what=f"{what}: {said}.",
                remedy=f"Check that {endpoint} is up. If it is only busy, raise `timeout_s` or `retries`.",
            ) from None  # the client's own error would show the key in a traceback, if the endpoint repeats it

    def _without_secrets(self, text: str) -> str:
        for secret in (self.key, urlsplit(self.url).password):
            if secret:
                text = text.replace(secret, HIDDEN)
        return text


def endpoint_from(
    url: str, key: str, *, timeout_s: float, retries: int, where: str, key_required: bool = False
) -> Endpoint:
    """The endpoint whose address and key these environment variables hold.

    Args:
        url, key: names of the environment variables.
        where: who asks, for errors.
        key_required: refuse an empty key.

    Raises: RecipeError, if a variable is empty; MissingExtra, without openai.
    """
    for name in (url, key) if key_required else (url,):
        if not os.environ.get(name):
            raise RecipeError(
                where=where,
                what=f"the environment variable {name} is empty.",
                remedy=f"Set it before the run: export {name}=…. A recipe never contains addresses or keys.",
            )
    try:
        _openai()
    except ImportError as error:
        raise missing_extra("openai", extra="serve", needed_for=where) from error
    return Endpoint(url=os.environ[url], key=os.environ.get(key, ""), timeout_s=timeout_s, retries=retries)


def _openai() -> Any:
    """The package, which takes most of a second to import."""
    return importlib.import_module("openai")
