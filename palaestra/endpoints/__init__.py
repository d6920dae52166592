"""Clients of chat models elsewhere. Endpoint policies and judges call them, in the protocols of OpenAI or Anthropic."""

from palaestra.endpoints.clients import Endpoint, Style, endpoint_from, require_package
from palaestra.endpoints.replies import Call, ChatRequest, Reply, ask, ask_async

__all__ = [
    "Call",
    "ChatRequest",
    "Endpoint",
    "Reply",
    "Style",
    "ask",
    "ask_async",
    "endpoint_from",
    "require_package",
]
