"""Chat models behind endpoints: how they are reached, what they are asked, and what they say, in two protocols."""

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
