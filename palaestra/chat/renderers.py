"""Renderers, which turn instructions, observations and actions into token ids, one turn at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from palaestra.chat.lengths import Encoder
from palaestra.chat.render import ChatRenderer
from palaestra.chat.tags import BLIND, TagRenderer, Tools
from palaestra.data import Observation, ToolCall
from palaestra.errors import InvalidData
from palaestra.models.pictures import PictureReader
from palaestra.models.tokenizer import ACTION, END, OBSERVATION
from palaestra.tools.calls import Parsed


class Renderer(Protocol):
    """What contexts and sessions need: ids of an instruction, an observation, a given action and given calls of tools;
    the text of sampled ids, and the calls in such a text."""

    instructed: bool  # whether a role's instruction is the environment's, unless the recipe says otherwise
    stop: tuple[int, ...]
    pictures: PictureReader | None  # reads the images of observations; None: they are left out
    blind: str  # why images are left out
    encoder: Encoder  # its limit is that of a prompt

    def instruction(self, text: str) -> np.ndarray: ...
    def observation(self, observation: Observation, *, first: bool) -> np.ndarray: ...
    def action(self, text: str, *, prompt: np.ndarray | None = None) -> np.ndarray: ...
    def call(
        self, calls: Sequence[ToolCall], tools: Tools, *, said: str = "", prompt: np.ndarray | None = None
    ) -> np.ndarray: ...
    def text(self, ids: np.ndarray, *, tools: Tools = (), prompt: np.ndarray | None = None) -> str: ...
    def calls(self, reply: str, tools: Tools) -> Parsed: ...


def renderer_for(
    tokenizer: Any, *, stop: Iterable[int] = (), pictures: PictureReader | None = None, blind: str = BLIND
) -> Renderer:
    """The renderer for a tokenizer: by tags if it has them as single ids, else by its chat template.

    Args:
        stop: further ids that end a reply, of the model's generation config.
        pictures: reads the images of observations; None: the model reads none. blind: why it reads none.

    Raises: InvalidData, for a tokenizer with neither.
    """
    if has_tags(tokenizer):
        return TagRenderer(tokenizer, blind=blind)
    if getattr(tokenizer, "chat_template", None):
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise InvalidData(
                where="policy language",
                what=f"{type(tokenizer).__name__} is no fast tokenizer, so it cannot tell special tokens from text.",
                remedy="Save the model's folder with a `tokenizer.json`, which the package `tokenizers` reads.",
            )
        return ChatRenderer(tokenizer, stop=stop, pictures=pictures, blind=blind)
    raise InvalidData(
        where="policy language",
        what="the tokenizer has neither the tags <|observation|>, <|action|>, <|end|> nor a chat template.",
        remedy="Use an instruction-tuned model, or set `tokenizer.chat_template` before saving the folder.",
    )


def has_tags(tokenizer: Any) -> bool:
    """Whether the tokenizer has the tags of `TagRenderer` as single ids."""
    return {OBSERVATION, ACTION, END} <= tokenizer.get_vocab().keys()  # GLM has one of them, too


def end_ids(model: Any) -> tuple[int, ...]:
    """The ids at which a model's generation config ends a reply."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (int(ends),)


def head_of(renderer: Renderer, observation: Observation) -> np.ndarray:
    """The ids at the head of a segment: those of the instruction, if there is one."""
    return renderer.instruction(observation.instruction) if observation.instruction else np.zeros(0, np.int32)
