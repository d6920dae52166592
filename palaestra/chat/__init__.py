"""Conversations to token ids: templates, contexts and how a history is shown."""

from palaestra.chat.history import ContextFull, FullHistory, LatestOnly, Window
from palaestra.chat.render import ChatRenderer, Renderer, TagRenderer, head_of, renderer_for
from palaestra.data.protocols import Context, Conversation, Prompt

__all__ = [
    "ChatRenderer",
    "Context",
    "ContextFull",
    "Conversation",
    "FullHistory",
    "LatestOnly",
    "Prompt",
    "Renderer",
    "TagRenderer",
    "Window",
    "head_of",
    "renderer_for",
]
