"""Contexts: from observations to prompt ids, appending only. Floor 3."""

from palaestra.contexts.editable import Edit, Editable, EditableMemory, read_edit, write_edit
from palaestra.contexts.history import Context, ContextFull, Conversation, FullHistory, LatestOnly, Prompt, Window
from palaestra.contexts.render import ChatRenderer, Renderer, TagRenderer, head_of, renderer_for
from palaestra.contexts.sampled_history import SampledHistory, history_probabilities

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
    "SampledHistory",
    "TagRenderer",
    "Window",
    "head_of",
    "history_probabilities",
    "read_edit",
    "renderer_for",
    "write_edit",
]
