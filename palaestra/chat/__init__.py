"""Turn conversations into token ids: renderers for chat templates, and contexts that choose the history to show."""

from palaestra.chat.history import FullHistory, LatestOnly, Window
from palaestra.chat.lengths import ContextFull
from palaestra.chat.render import ChatRenderer
from palaestra.chat.renderers import Renderer, head_of, renderer_for
from palaestra.chat.tags import TagRenderer
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
