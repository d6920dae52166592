"""Contexts: from observations to prompt ids, appending only. Floor 3."""

from palaestra.contexts.editable import Edit, Editable, EditableMemory, read_edit, write_edit
from palaestra.contexts.history import Context, ContextFull, Conversation, FullHistory, LatestOnly, Prompt, Window
from palaestra.contexts.render import ChatRenderer, Renderer, TagRenderer, head_of, renderer_for

__all__ = [
    "ChatRenderer",
    "Context",
    "ContextFull",
    "Conversation",
    "Edit",
    "Editable",
    "EditableMemory",
    "FullHistory",
    "LatestOnly",
    "Prompt",
    "Renderer",
    "TagRenderer",
    "Window",
    "head_of",
    "read_edit",
    "renderer_for",
    "write_edit",
]
